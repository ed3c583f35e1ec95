"""What can be said of YAML on a page without a cluster: services, parts of them, chart values."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import yaml

from docs_check.blocks import ROOT
from paceline_api.inference_service import GROUP, VERSION, Spec
from paceline_api.validate import InvalidManifestError, validate

Manifest = dict[str, Any]

OTHER_KINDS = {
    "Application": "Argo CD's: its definition is not here",
    "GitRepository": "Flux's: its definition is not here",
    "Kustomization": "Flux's: its definition is not here",
    "HelmRelease": "Flux's: its definition is not here",
    "OCIRepository": "Flux's: its definition is not here",
    "AlertmanagerConfig": "the Prometheus Operator's: its definition is not here",
    "PodMonitor": "the Prometheus Operator's: its definition takes ours in tests/e2e",
    "Gateway": "the Gateway API's: its definition checks those of examples/ in tests/operator",
    "HTTPRoute": "the Gateway API's: its definition checks those of examples/ in tests/operator",
    "InferencePool": "the inference extension's: its definition checks ours in tests/operator",
    "ScaledObject": "KEDA's: an API server with its definition checks it in tests/operator",
    "Service": "Kubernetes' own: the API server checks it where tests apply it",
    "HorizontalPodAutoscaler": "Kubernetes' own: the API server checks it where tests apply it",
    "Job": "Kubernetes' own: the API server checks it where tests apply it",
    "CronJob": "Kubernetes' own: the API server checks it in tests/deploy/test_offline_job.py",
    "Namespace": "Kubernetes' own, and has no fields",
    "NetworkPolicy": "Kubernetes' own: the API server checks it where tests apply it",
    "Secret": "Kubernetes' own: its fields are names and data",
    "ConfigMap": "Kubernetes' own: its fields are names and data",
    "PersistentVolumeClaim": "Kubernetes' own: the API server checks it where tests apply it",
    "PriorityClass": "Kubernetes' own: the API server checks it where tests apply it",
    "ResourceClaim": "Kubernetes' own: the API server checks it where tests apply it",
    "ResourceClaimTemplate": "Kubernetes' own: the API server checks it where tests apply it",
    "ResourceFlavor": "Kueue's: its definition is applied where tests apply it",
    "ClusterQueue": "Kueue's: its definition is applied where tests apply it",
    "LocalQueue": "Kueue's: its definition is applied where tests apply it",
    "WorkloadPriorityClass": "Kueue's: its definition is applied where tests apply it",
}
"""Kinds whose fields nobody checks here, and why."""

_KUSTOMIZATION = {"resources", "images", "patches", "namespace", "components"}
_WHOLE: Manifest = {
    "apiVersion": f"{GROUP}/{VERSION}",
    "kind": "InferenceService",
    "metadata": {"name": "on-a-page"},
}
_REST: Manifest = {
    "model": {"uri": "builtin://smollm2-135m-instruct"},
    "sla": {"itl": {"p99": "500ms"}},
    "resources": {"gpu": {"count": 0}},
}


def manifest_problems(text: str) -> list[str]:
    """Say what is wrong with each document; nothing where all are fine."""
    return [
        problem for document in yaml.safe_load_all(text) if document for problem in _of(document)
    ]


def _of(document: Any) -> Iterator[str]:
    if not isinstance(document, dict):
        yield f"no mapping: {document!r}"
    elif document.get("kind") == "InferenceService":
        yield from _refused(document)
    elif "kind" in document:
        if document["kind"] not in OTHER_KINDS:
            yield f"no check knows the kind {document['kind']}"
        if "apiVersion" not in document or not document.get("metadata", {}).get("name"):
            yield f"{document['kind']} without apiVersion or name"
    elif {"resources", "patches"} <= set(document) <= _KUSTOMIZATION:
        return
    else:
        yield from _of_a_part(document)


def _of_a_part(document: Manifest) -> Iterator[str]:
    """A part of a spec, or values of the chart: one of both must take it."""
    spec = document.get("spec", document)
    found = []
    if set(spec) <= {field.alias or name for name, field in Spec.model_fields.items()}:
        found.append([*_refused(_WHOLE | {"spec": _merged(_REST, spec)})])
    if "spec" not in document:
        found.append([*_no_values(document)])
    if [] not in found:
        yield from (problem for problems in found for problem in problems)
    if not found:
        yield f"no part of a spec: {sorted(spec)}"


def _refused(manifest: Manifest) -> Iterator[str]:
    try:
        validate(manifest)
    except InvalidManifestError as problem:
        yield str(problem)


def _no_values(values: Manifest) -> Iterator[str]:
    schema = json.loads((ROOT / "charts/paceline/values.schema.json").read_text())
    check: Callable[..., Any] = jsonschema.Draft202012Validator(schema).iter_errors
    yield from (problem.message for problem in check(values))


def _merged(below: Manifest, above: Manifest) -> Manifest:
    """Lay one document over another, mapping by mapping."""
    merged = below | above
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            merged[name] = _merged(below[name], above[name])
    return merged
