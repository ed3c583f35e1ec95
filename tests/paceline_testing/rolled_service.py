"""A service on a node whose pods are rolled while clients stream answers."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from local_cluster.cluster import Cluster
from paceline_cli.traffic.offered_load import OfferedLoad, TokenLengths
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.background_load import background_load
from paceline_testing.quickstart import condition
from paceline_testing.waiting import wait_until

WITHIN_S = 600.0
_CHART = Path(__file__).parents[2] / "charts" / "paceline"
_STREAMS = OfferedLoad(
    rate_rps=0.5,
    cv=1.0,
    prompt_tokens=TokenLengths(median=24, sigma=0.3, min=8, max=48),
    output_tokens=TokenLengths(median=16, sigma=0.4, min=8, max=32),
    block_s=6.0,
)


@dataclass(frozen=True, slots=True)
class RolledService:
    """A service and its pods, as a person with kubectl sees them."""

    cluster: Cluster
    name: str = "rolled"
    replicas: int = 2

    def apply(self, *, engine: dict[str, Any] | None = None, **rollout: Any) -> None:
        """Apply it with these fields of `spec.engine` and `spec.rollout`."""
        spec = {
            "model": {"uri": "builtin://smollm2-135m-instruct"},
            "engine": {
                "maxModelLen": 2048,
                "capacity": {"maxBatchSize": 16, "maxTokenBudget": 512},
            }
            | (engine or {}),
            "sla": {"ttft": {"p99": "60s"}, "itl": {"p99": "10s"}},
            "replicas": self.replicas,
            "resources": {"gpu": {"count": 0}, "cpu": "300m", "memory": "3Gi"},
            "rollout": {"canarySeconds": 20} | rollout,
        }
        self.apply_spec(spec)

    def apply_spec(self, spec: dict[str, Any]) -> None:
        """Apply it with exactly this spec."""
        manifest = {
            "apiVersion": "serving.paceline.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": self.name},
            "spec": spec,
        }
        self.cluster.kubectl("apply", "--filename=-", input=yaml.safe_dump(manifest))

    def get(self) -> dict[str, Any]:
        """Read it."""
        text = self.cluster.kubectl("get", "pisvc", self.name, "-ojson")
        found: dict[str, Any] = json.loads(text)
        return found

    def rollout(self) -> dict[str, Any]:
        """Read `status.rollout`."""
        found: dict[str, Any] = self.get().get("status", {}).get("rollout", {})
        return found

    def serves(self) -> bool:
        """Whether its pods serve the present generation."""
        service = self.get()
        ready = condition(service, "Ready")
        return bool(
            ready.get("status") == "True"
            and ready.get("observedGeneration") == service["metadata"]["generation"]
            and len(self.pods()) == self.replicas
        )

    def pods(self) -> dict[str, str]:
        """The image of the engine of each pod that stays, by the pod's UID."""
        label = f"--selector=serving.paceline.dev/service={self.name}"
        pods = json.loads(self.cluster.kubectl("get", "pods", label, "-ojson"))["items"]
        return {
            pod["metadata"]["uid"]: pod["spec"]["containers"][0]["image"]
            for pod in pods
            if "deletionTimestamp" not in pod["metadata"]
        }

    def reached(self, phase: str, *, engine: str) -> None:
        """Wait until the rollout of this engine's image is in this phase."""

        def is_there() -> bool:
            told = self.rollout()
            return bool(told and told["phase"] == phase and told["images"]["engine"] == engine)

        wait_until(is_there, within_s=WITHIN_S, every_s=0.5)

    @contextmanager
    def under_load(
        self,
        load: OfferedLoad = _STREAMS,
        *,
        keeps_connections: bool = True,
        gateway: str | None = None,
    ) -> Iterator[list[ClientRecord]]:
        """Stream answers through the ClusterIP, or a gateway; at the end each must be whole."""
        reached = self.cluster.reach(f"service/{self.name}", 8000)
        with (
            reached if gateway is None else nullcontext(gateway) as url,
            background_load(
                url, load, model=self.name, keeps_connections=keeps_connections
            ) as records,
        ):
            wait_until(lambda: len(records) >= 2, within_s=WITHIN_S)
            yield records
            so_far = len(records)
            wait_until(lambda: len(records) >= so_far + 2, within_s=WITHIN_S)
        ends = Counter((record.outcome, record.error) for record in records)
        assert set(ends) == {("ok", "")}, ends


@contextmanager
def chart_installed(cluster: Cluster, release: str, **more: Any) -> Iterator[None]:
    """Let an operator of the chart run, with this tree's images, in a namespace of its own.

    `more` are further values of the chart.
    """
    repository, tag = cluster.images["operator"].split(":")
    values = {
        "image": {"repository": repository, "tag": tag},
        "engineImage": cluster.images["engine"],
        "sidecarImage": cluster.images["sidecar"],
    } | more
    with cluster.helm(release) as helm:
        helm.install(_CHART, release, values, create_namespace=True, wait="watcher", timeout=300)
    try:
        yield
    finally:
        with cluster.helm(release) as helm:
            helm.uninstall(release, wait="watcher", timeout=300)
        cluster.try_kubectl("delete", "namespace", release, "--timeout=120s")


@contextmanager
def served(service: RolledService) -> Iterator[RolledService]:
    """Wait until what was applied serves; delete it in the end."""
    try:
        wait_until(service.serves, within_s=WITHIN_S, every_s=0.5)
        yield service
    finally:
        service.cluster.try_kubectl("delete", "pisvc", service.name, "--timeout=120s")
