"""KEDA scales a service by the replicas that the operator recommends, with and without Prometheus.

Real are the control plane with its autoscaler, KEDA's operator and adapter, Prometheus, the
operator from the chart's Deployment, and each pod's sidecar, scheduler and pacer. Pods are
processes, and their devices only take time (`paceline_testing.timed_engine`).
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import Cluster
from local_cluster.keda import keda
from local_cluster.monitoring import LABELS, Stack, monitoring
from paceline_testing.process_node import ProcessNode, process_node
from paceline_testing.steady_clients import Clients
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1200, func_only=True)]

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
SYSTEM, HOME, NAME = "paceline-system", "ml", "chat"
JOBS = {f"podMonitor/{SYSTEM}/paceline/0", f"podMonitor/{SYSTEM}/paceline-services/0"}
SERVICE: Json = {
    "apiVersion": "serving.paceline.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": NAME, "namespace": HOME},
    "spec": {
        "model": {"uri": "builtin://smollm2-135m-instruct"},
        "engine": {"capacity": {"maxBatchSize": 8, "maxTokenBudget": 256}},
        "sla": {"ttft": {"p99": "4s"}, "itl": {"p99": "400ms"}},
        "admission": {"requestTimeout": "30s"},
        "rollout": {"drainSeconds": 30},
        "resources": {"gpu": {"count": 0}},
    },
}


@dataclass(frozen=True)
class World:
    """All of it."""

    cluster: Cluster
    node: ProcessNode
    stack: Stack
    clients: Clients
    folder: Path

    def kubectl(self, *args: str, input: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={HOME}", *args, input=input)

    def service(self) -> Json:
        found: Json = json.loads(self.kubectl("get", "pisvc", NAME, "-ojson"))
        return found

    def scale_by(self, example: str) -> None:
        """Hand the service to an example's ScaledObject, quicker to scale in than people want."""
        for found in yaml.safe_load_all((ROOT / "examples" / example).read_text()):
            if found["kind"] == "ScaledObject":
                self.kubectl("apply", "--filename=-", input=json.dumps(self._ours(found)))
            else:
                self.cluster.kubectl("apply", "--filename=-", input=json.dumps(found))
        ready = "--for=condition=Ready"
        self.kubectl("wait", ready, f"scaledobject/{NAME}", "--timeout=60s")

    def _ours(self, found: Json) -> Json:
        found["metadata"]["name"] = found["spec"]["scaleTargetRef"]["name"] = NAME
        found["spec"]["maxReplicaCount"] = 2
        config = found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
        config["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 30
        for trigger in found["spec"]["triggers"]:
            metadata = trigger["metadata"]
            if "serverAddress" in metadata:
                metadata["serverAddress"] = self.stack.prometheus
            if "url" in metadata:
                # Pods have loopback addresses here, which no EndpointSlice may hold.
                metadata["url"] = f"http://{self._operator()}:8080/metrics"
                del metadata["aggregateFromKubeServiceEndpoints"], metadata["aggregationType"]
            for key in {"query", "valueLocation"} & metadata.keys():
                renamed = metadata[key].replace('"default"', f'"{HOME}"')
                metadata[key] = renamed.replace('"quickstart"', f'"{NAME}"')
        return found

    def _operator(self) -> str:
        """Return the address of the operator's pod."""
        place = f"--namespace={SYSTEM}"
        chosen = "--selector=app.kubernetes.io/component=operator"
        return self.cluster.kubectl(
            "get", "pods", place, chosen, "-ojsonpath={.items[0].status.podIP}"
        ).strip()

    def eventually(self, reached: Callable[[], object], *, within_s: float = 300) -> None:
        """Wait, and tell how things stand where it does not come."""

        def look() -> object:
            time.sleep(1)
            return reached()

        try:
            wait_until(look, within_s=within_s)
        except AssertionError as late:
            told = self.kubectl("describe", "scaledobject,hpa")
            logs = [path.read_text()[-3000:] for path in self.folder.glob("keda-*.log")]
            status = self.service().get("status")
            raise AssertionError(f"{late}\n{status}\n{told}\n{logs}\n{self.node.log}") from late


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The chart with its monitoring, KEDA, a service, and clients."""
    folder = tmp_path_factory.mktemp("fleet")
    with (
        process_node(cluster, folder) as node,
        monitoring(cluster, folder, webhook="http://127.0.0.1:9/") as stack,
    ):
        stack.begin_operator()
        with cluster.helm(SYSTEM) as helm:
            values = {"podMonitor": True, "servicePodMonitor": True, "prometheusRule": False}
            helm.install(
                ROOT / "charts" / "paceline",
                "paceline",
                {"monitoring": {**values, "labels": LABELS}},
                create_namespace=True,
                wait="watcher",
                timeout=180,
            )
        cluster.kubectl("create", "namespace", HOME)
        cluster.kubectl("apply", "--filename=-", input=json.dumps(SERVICE))
        stack.begin_prometheus(jobs=JOBS)
        clients = Clients(lambda: node.serving(HOME, NAME), NAME)
        clients.rate_rps = 2.0
        place = f"--namespace={HOME}"
        cluster.kubectl("wait", "--for=condition=Ready", f"pisvc/{NAME}", place, "--timeout=120s")
        try:
            with keda(cluster, folder):
                yield World(cluster, node, stack, clients, folder)
        finally:
            clients.close()
            cluster.try_kubectl("delete", "scaledobject", "--all", place, "--timeout=60s")
            cluster.try_kubectl("delete", "pisvc", "--all", place, "--timeout=60s")


@pytest.mark.parametrize("example", ["keda.yaml", "keda-without-prometheus.yaml"])
def test_keda_adds_a_pod_under_load_and_scaling_in_drains(world: World, example: str) -> None:
    """One pod, two, and one again; whoever asked while the pod left got an answer."""
    codes = world.clients.codes
    world.scale_by(example)
    world.eventually(lambda: world.service()["spec"]["replicas"] == 1)

    world.clients.rate_rps = 11.0
    world.eventually(lambda: world.service()["status"]["readyReplicas"] == 2)
    served = len(codes)
    world.eventually(lambda: len(codes) >= served + 200)  # what had queued before one pod is served
    world.clients.rate_rps, before = 2.0, len(codes)
    world.eventually(lambda: world.service()["status"]["replicas"] == 1)

    assert set(codes[before:]) == {200}


def test_a_metric_that_vanishes_scales_nothing_in(world: World) -> None:
    """The operator is gone: KEDA keeps the pods that there are, and does not take none for zero."""
    world.scale_by("keda.yaml")
    world.clients.rate_rps = 11.0
    world.eventually(lambda: world.service()["status"]["readyReplicas"] == 2)

    world.cluster.kubectl("scale", "deployment/paceline", f"--namespace={SYSTEM}", "--replicas=0")
    query = f'paceline_recommended_replicas{{namespace="{HOME}"}}'
    world.eventually(lambda: not world.stack.query(query))
    world.eventually(lambda: _is_erring(world))

    assert world.service()["spec"]["replicas"] == 2


def _is_erring(world: World) -> bool:
    """Whether KEDA has counted failures of the trigger."""
    status = json.loads(world.kubectl("get", "scaledobject", NAME, "-ojson"))["status"]
    return any(each.get("numberOfFailures", 0) > 0 for each in status.get("health", {}).values())
