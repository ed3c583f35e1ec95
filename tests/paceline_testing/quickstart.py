"""The applied quickstart, as a person with kubectl sees it."""

import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from local_cluster.cluster import Cluster

QUICKSTART: Final = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
GITOPS: Final = ("--server-side", "--field-manager=argocd-controller")


@dataclass(frozen=True, slots=True)
class Quickstart:
    """The applied `examples/quickstart.yaml`, read through the API."""

    cluster: Cluster

    @property
    def manifest(self) -> dict[str, Any]:
        loaded: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
        return loaded

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def pod_selector(self) -> str:
        return f"--selector=serving.paceline.dev/service={self.name}"

    def get(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.cluster.kubectl("get", "pisvc", self.name, "--output=json")
        )
        return found

    def pods(self) -> list[dict[str, Any]]:
        listed = self.cluster.kubectl("get", "pods", self.pod_selector, "--output=json")
        pods: list[dict[str, Any]] = json.loads(listed)["items"]
        return pods

    def identities(self) -> set[tuple[str, int]]:
        """Each pod's UID with the restarts of its containers: a new one is a restart."""
        return {
            (
                pod["metadata"]["uid"],
                sum(container["restartCount"] for container in pod["status"]["containerStatuses"]),
            )
            for pod in self.pods()
        }

    def apply(self, sla: dict[str, Any] | None = None) -> str:
        """Apply the manifest as a GitOps controller would; return it as applied."""
        manifest = self.manifest
        if sla is not None:
            manifest["spec"]["sla"] = sla
        text = yaml.safe_dump(manifest)
        self.cluster.kubectl("apply", *GITOPS, "--filename=-", input=text)
        return text

    def limits(self, pod: str) -> dict[str, Any]:
        """What the pod itself says, over its runtime API."""
        query = "--output=jsonpath={.data.token}"
        encoded = self.cluster.kubectl("get", "secret", f"{self.name}-runtime-token", query)
        token = base64.b64decode(encoded).decode()
        with self.cluster.reach(f"pod/{pod}", 8001) as url:
            answer = httpx.get(
                f"{url}/runtime/limits", headers={"Authorization": f"Bearer {token}"}, timeout=30
            )
        answer.raise_for_status()
        limits: dict[str, Any] = answer.json()
        return limits

    def wait_until_acknowledged(self, sla: dict[str, Any], *, within_s: float) -> None:
        """Until every pod holds this SLA and the status says so."""
        wanted_ms = float(sla["ttft"]["p99"].removesuffix("s")) * 1e3
        end = time.monotonic() + within_s
        while True:
            names = [pod["metadata"]["name"] for pod in self.pods()]
            limits = [self.limits(name) for name in names]
            status = self.get()["status"]
            hashes = {answer["config_hash"] for answer in limits}
            if (
                all(answer["sla"]["ttft_p99_ms"] == wanted_ms for answer in limits)
                and status["observedGeneration"] == self.get()["metadata"]["generation"]
                and hashes == {status["observedConfigHash"]}
            ):
                return
            assert time.monotonic() < end, f"pods hold {limits}, status {status}"
            time.sleep(0.2)


def condition(service: dict[str, Any], kind: str) -> dict[str, Any]:
    """One condition of a service, empty where there is none yet."""
    conditions = service.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})
