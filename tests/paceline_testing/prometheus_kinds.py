"""The kinds of the Prometheus Operator, without it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from local_cluster.cluster import Cluster
from paceline_api.labels import Manifest


@contextmanager
def kinds_of_prometheus(cluster: Cluster) -> Iterator[None]:
    """The two kinds, with any content; tests/e2e has the real definitions and their operator."""
    definitions = [_definition("PodMonitor"), _definition("PrometheusRule")]
    for definition in definitions:
        cluster.kubectl("apply", "-f", "-", input=json.dumps(definition))
    try:
        yield
    finally:
        for definition in definitions:
            name = f"crd/{definition['metadata']['name']}"
            cluster.kubectl("delete", name, "--timeout=60s")


def _definition(kind: str) -> Manifest:
    plural, anything = f"{kind.lower()}s", {"x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object"} | anything}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.monitoring.coreos.com"},
        "spec": {
            "group": "monitoring.coreos.com",
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
