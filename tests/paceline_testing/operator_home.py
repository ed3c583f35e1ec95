"""A namespace with its operator, as a person with kubectl sees it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local_cluster.cluster import Cluster
from paceline_api.labels import Manifest
from paceline_testing.running_operator import RunningOperator, eventually
from paceline_testing.services import a_manifest

KINDS = "deployment,service,serviceaccount,configmap,secret,networkpolicy,poddisruptionbudget"


@dataclass(frozen=True, slots=True)
class Home:
    """One namespace with its operator."""

    cluster: Cluster
    namespace: str
    operator: RunningOperator

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *args, **options)

    def apply(self, manifest: Manifest, *flags: str) -> None:
        manifest["metadata"].pop("namespace", None)
        self.kubectl("apply", *flags, "-f", "-", input=json.dumps(manifest))

    def get(self, kind: str, name: str) -> Manifest | None:
        text = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        found: Manifest | None = json.loads(text) if text else None
        return found

    def children(self, name: str) -> dict[str, Manifest]:
        """Every child by kind and name."""
        label = f"serving.paceline.dev/service={name}"
        items = json.loads(self.kubectl("get", KINDS, "-l", label, "-o", "json"))["items"]
        return {f"{item['kind']}/{item['metadata']['name']}": item for item in items}

    def until(self, look: Callable[[], Any]) -> Any:
        return eventually(look, told_by=self.operator.log)

    def condition(self, name: str, kind: str) -> Manifest:
        status = (self.get("pisvc", name) or {}).get("status", {})
        return next((c for c in status.get("conditions", ()) if c["type"] == kind), {})

    def reported(self, name: str) -> bool:
        """Whether status speaks of the present generation."""
        service = self.get("pisvc", name) or {"metadata": {"generation": 0}}
        observed = service.get("status", {}).get("observedGeneration")
        return bool(observed == service["metadata"]["generation"])

    def serve(self, name: str, **spec: Any) -> None:
        """Apply a service and wait until the operator has reported it."""
        self.apply(a_manifest(name, **spec))
        self.until(lambda: self.reported(name))
