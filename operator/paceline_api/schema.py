"""The typed models -> the definition: `python -m paceline_api.schema FOLDER...`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from paceline_api.inference_service import GROUP, KIND, PLURAL, VERSION, Spec
from paceline_api.part import Part, Rule
from paceline_api.status import Status

FILE: Final = "inferenceservices.yaml"
HEADER: Final = "# Generated from operator/paceline_api by `make crds`: do not edit.\n"

_NAME: Final = Rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,48}[a-z0-9])?$')",
    "metadata.name must be 1 to 50 of a-z, 0-9 and '-', and start with a letter:"
    " it names a Service and labels pods",
)
_COLUMNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("SLA", "string", '.status.conditions[?(@.type=="SLAMet")].status'),
    ("TTFT-P99", "string", ".status.sla.observed.ttftP99"),
    ("TPOT-P99", "string", ".status.sla.observed.tpotP99"),
    ("ITL-P99", "string", ".status.sla.observed.itlP99"),
    ("Batch", "string", ".status.tuning.summary.batchSize"),
    ("Tokens", "string", ".status.tuning.summary.tokenBudget"),
    ("ReadyReplicas", "integer", ".status.readyReplicas"),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason'),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_WIDE_COLUMNS: Final[tuple[tuple[str, str, str], ...]] = (
    ("Target-TTFT", "string", ".spec.sla.ttft.p99"),
    ("Target-TPOT", "string", ".spec.sla.tpot.p99"),
    ("Target-ITL", "string", ".spec.sla.itl.p99"),
    ("Target-E2E", "string", ".spec.sla.e2e.p99"),
    ("E2E-P99", "string", ".status.sla.observed.e2eP99"),
    (
        "Late-Prompts",
        "string",
        '.status.sla.ttftByPromptTokens[?(@.verdict=="Violating")].promptTokens',
    ),
    ("Mode", "string", ".spec.tuning.mode"),
    ("Model", "string", ".spec.model.uri"),
    ("Capacity", "string", ".status.sla.capacity.requestsPerSecond"),
    ("Output-Tokens/s", "string", ".status.throughput.outputTokensPerSecond"),
    ("Requests/s", "string", ".status.throughput.requestsPerSecond"),
    ("Cost-Per-1M", "string", ".status.throughput.costPerMillionOutputTokens"),
    ("URL", "string", ".status.url"),
)


def definition() -> dict[str, Any]:
    """Build the whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Removing the operator keeps the services: Helm and Argo CD heed the one, Flux the other.
        "metadata": {
            "name": f"{PLURAL}.{GROUP}",
            "annotations": {
                "helm.sh/resource-policy": "keep",
                "kustomize.toolkit.fluxcd.io/prune": "disabled",
            },
        },
        "spec": {
            "group": GROUP,
            "names": {
                "categories": ["inference"],
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "shortNames": ["pisvc"],
                "singular": KIND.lower(),
            },
            "scope": "Namespaced",
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [*_columns()],
        "schema": {"openAPIV3Schema": resource_schema()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
    }


def _columns() -> Iterator[dict[str, Any]]:
    for name, kind, path in _COLUMNS:
        yield {"name": name, "type": kind, "jsonPath": path}
    for name, kind, path in _WIDE_COLUMNS:
        yield {"name": name, "type": kind, "jsonPath": path, "priority": 1}


def resource_schema() -> dict[str, Any]:
    """Build the structural schema of one resource."""
    return {
        "type": "object",
        "description": "Serves a language model and keeps a declared p99 SLA.",
        "required": ["spec"],
        "x-kubernetes-validations": [_NAME.schema()],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(Spec),
            "status": structural(Status),
        },
    }


def structural(part: type[Part]) -> dict[str, Any]:
    """Turn pydantic's JSON schema into a structural one: inline, without nulls and titles."""
    schema = part.model_json_schema(by_alias=True)
    return _inline(schema, schema.get("$defs", {}))


def _inline(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    schema = _resolved(schema, definitions)
    out = {
        key: value
        for key, value in schema.items()
        if key not in {"title", "$defs", "additionalProperties", "properties", "items"}
    }
    if out.get("type") == "integer":
        out["format"] = "int64" if out.get("maximum", 0) >= 2**31 else "int32"
    if "description" in out:
        out["description"] = " ".join(str(out["description"]).split())
    if "properties" in schema:
        out["properties"] = {
            name: _inline(value, definitions) for name, value in schema["properties"].items()
        }
    if "items" in schema:
        out["items"] = _inline(schema["items"], definitions)
    if isinstance(schema.get("additionalProperties"), dict):
        out["additionalProperties"] = _inline(schema["additionalProperties"], definitions)
    _simplify_default(out)
    return out


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Inline references and drop `null`: an unset field is left out, never null."""
    if "$ref" in schema:
        target = definitions[schema["$ref"].rsplit("/", 1)[-1]]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolved({**target, **rest}, definitions)
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) == 1:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return _resolved({**kinds[0], **rest}, definitions)
    return schema


def _simplify_default(schema: dict[str, Any]) -> None:
    """Write an object's default in full: the API server asks its rules before filling it in."""
    if "default" in schema:
        schema["default"] = _without_nulls(schema["default"])
        if schema["default"] is None:
            del schema["default"]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


class _Plain(yaml.SafeDumper):
    """Writes repeated parts in full instead of as YAML aliases, for human readers."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never write an alias."""
        del data
        return True


def text() -> str:
    """Write the definition as YAML."""
    written: str = yaml.dump(
        definition(), Dumper=_Plain, sort_keys=False, width=100, allow_unicode=True
    )
    return HEADER + written


def main(folders: list[str]) -> None:
    """Write the definition into each folder."""
    for folder in folders:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / FILE).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
