"""KEDA scales a service by the replicas that the operator recommends, with and without Prometheus.

KEDA's operator and adapter, and the control plane's autoscaler, are real, and so is all of
`paceline_testing.monitored_service`.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import Cluster
from local_cluster.keda import keda
from paceline_testing.monitored_service import (
    HOME,
    NAME,
    ROOT,
    SYSTEM,
    MonitoredService,
    monitored_service,
)

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1200, func_only=True)]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class World:
    """The service, and KEDA."""

    service: MonitoredService
    folder: Path

    def scale_by(self, example: str) -> None:
        """Hand the service to an example's ScaledObject, quicker to scale in than people want."""
        for found in yaml.safe_load_all((ROOT / "examples" / example).read_text()):
            if found["kind"] == "ScaledObject":
                self.service.kubectl("apply", "--filename=-", input=json.dumps(self._ours(found)))
            else:
                self.service.cluster.kubectl("apply", "--filename=-", input=json.dumps(found))
        ready = "--for=condition=Ready"
        self.service.kubectl("wait", ready, f"scaledobject/{NAME}", "--timeout=120s")

    def _ours(self, found: Json) -> Json:
        found["metadata"]["name"] = found["spec"]["scaleTargetRef"]["name"] = NAME
        found["spec"]["maxReplicaCount"] = 2
        config = found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
        config["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 30
        for trigger in found["spec"]["triggers"]:
            metadata = trigger["metadata"]
            if "serverAddress" in metadata:
                metadata["serverAddress"] = self.service.stack.prometheus
            if "url" in metadata:
                # Pods have loopback addresses here, which no EndpointSlice may hold.
                metadata["url"] = f"http://{self._operator()}:8080/metrics"
                del metadata["aggregateFromKubeServiceEndpoints"], metadata["aggregationType"]
            for key in {"query", "valueLocation"} & metadata.keys():
                renamed = metadata[key].replace('"default"', f'"{HOME}"')
                metadata[key] = renamed.replace('"chat"', f'"{NAME}"')
        return found

    def _operator(self) -> str:
        """Return the address of the operator's pod."""
        place = f"--namespace={SYSTEM}"
        chosen = "--selector=app.kubernetes.io/component=operator"
        return self.service.cluster.kubectl(
            "get", "pods", place, chosen, "-ojsonpath={.items[0].status.podIP}"
        ).strip()

    def eventually(self, reached: Callable[[], object]) -> None:
        self.service.eventually(reached, tell=self._stands)

    def _stands(self) -> str:
        told = self.service.kubectl("describe", "scaledobject,hpa")
        logs = [path.read_text()[-3000:] for path in self.folder.glob("keda-*.log")]
        return "\n".join([told, *logs])


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service that two requests a second ask, and KEDA beside it."""
    folder = tmp_path_factory.mktemp("fleet")
    with (
        monitored_service(cluster, folder, rate_rps=2.0) as service,
        keda(cluster, folder),
    ):
        try:
            yield World(service, folder)
        finally:  # while KEDA is there to take its finalizer off
            place = f"--namespace={HOME}"
            cluster.try_kubectl("delete", "scaledobject", "--all", place, "--timeout=60s")


@pytest.mark.parametrize("example", ["keda.yaml", "keda-without-prometheus.yaml"])
def test_keda_adds_a_pod_under_load_and_scaling_in_drains(world: World, example: str) -> None:
    """One pod, two, and one again; whoever asked while the pod left got an answer."""
    clients = world.service.clients
    codes = clients.codes
    world.scale_by(example)
    world.eventually(lambda: world.service.has(1))

    clients.rate_rps = 1.2 * world.service.one_pod_rps()
    world.eventually(lambda: world.service.has(2))
    served = len(codes)
    # What had queued before one pod is served, and nobody is refused for it any more.
    world.eventually(lambda: len(codes) >= served + 200 and clients.are_answered(100))
    clients.rate_rps, before = 2.0, len(codes)
    world.eventually(lambda: world.service.has(1))

    assert set(codes[before:]) == {200}


def test_a_metric_that_vanishes_scales_nothing_in(world: World) -> None:
    """The operator is gone: KEDA keeps the pods that there are, and does not take none for zero."""
    world.scale_by("keda.yaml")
    world.service.clients.rate_rps = 1.2 * world.service.one_pod_rps()
    world.eventually(lambda: world.service.has(2))

    place = f"--namespace={SYSTEM}"
    world.service.cluster.kubectl("scale", "deployment/paceline", place, "--replicas=0")
    query = f'paceline_recommended_replicas{{namespace="{HOME}"}}'
    world.eventually(lambda: not world.service.stack.query(query))
    world.eventually(lambda: _is_erring(world))

    assert world.service.wants(2)


def _is_erring(world: World) -> bool:
    """Whether KEDA has counted failures of the trigger."""
    status = json.loads(world.service.kubectl("get", "scaledobject", NAME, "-ojson"))["status"]
    return any(each.get("numberOfFailures", 0) > 0 for each in status.get("health", {}).values())
