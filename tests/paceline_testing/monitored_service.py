"""A service that the chart's operator runs and Prometheus watches, and clients that ask it.

The control plane, Prometheus and its operator, and Paceline's operator from the chart's Deployment
are real, and so are each pod's sidecar, scheduler and pacer. Pods are processes, and their devices
only take time (`paceline_testing.timed_engine`).
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local_cluster.cluster import Cluster
from local_cluster.monitoring import LABELS, NOBODY, Stack, monitoring
from paceline_testing.process_node import ProcessNode, process_node
from paceline_testing.steady_clients import Clients
from paceline_testing.waiting import wait_until

Json = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
SYSTEM: Final = "paceline-system"
HOME: Final = "ml"
NAME: Final = "chat"
OURS: Final = f'{{namespace="{HOME}", inferenceservice="{NAME}"}}'
"""Which service's metrics."""
JOBS: Final = {f"podMonitor/{SYSTEM}/paceline/0", f"podMonitor/{SYSTEM}/paceline-services/0"}
"""What Prometheus scrapes by the chart's monitors."""
_WITHIN_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class MonitoredService:
    """The service and all around it."""

    cluster: Cluster
    node: ProcessNode
    stack: Stack
    clients: Clients

    def kubectl(self, *args: str, input: str | None = None) -> str:
        """Run kubectl in the service's namespace."""
        return self.cluster.kubectl(f"--namespace={HOME}", *args, input=input)

    def read(self) -> Json:
        """Return the service as the API server has it."""
        found: Json = json.loads(self.kubectl("get", "pisvc", NAME, "-ojson"))
        return found

    def wants(self, replicas: int) -> bool:
        """Whether its spec asks for so many pods."""
        return bool(self.read()["spec"].get("replicas") == replicas)

    def has(self, replicas: int) -> bool:
        """Whether so many pods are ready, and no other is there but those that leave."""
        status = self.read().get("status", {})
        return bool(status.get("readyReplicas") == status.get("replicas") == replicas)

    def metric(self, expression: str) -> float | None:
        """Ask Prometheus for one number; None where there is none."""
        found = self.stack.query(expression)
        return float(found[0]["value"][1]) if found else None

    def one_pod_rps(self) -> float:
        """Return λ* while one pod serves: this machine's, which no rate of ours can know."""
        capacity = f"paceline_capacity_requests_per_second{OURS}"
        self.eventually(lambda: self.has(1), tell=self.stack.alerts)
        self.eventually(lambda: self.metric(capacity), tell=self.stack.alerts)
        found = self.metric(capacity)
        assert found is not None
        return found

    def eventually(
        self,
        reached: Callable[[], object],
        *,
        within_s: float = _WITHIN_S,
        tell: Callable[[], object],
    ) -> None:
        """Wait for it; where it does not come, tell how things stand."""
        try:
            wait_until(reached, within_s=within_s, every_s=1.0)
        except AssertionError as late:
            status = self.read().get("status")
            raise AssertionError(f"{late}\n{status}\n{tell()}\n{self.node.log}") from late


def manifest(name: str, **sla: Json) -> Json:
    """Describe a service whose pods hold eight rows, with these targets."""
    return {
        "apiVersion": "serving.paceline.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": HOME},
        "spec": {
            "model": {"uri": "builtin://smollm2-135m-instruct"},
            "engine": {"capacity": {"maxBatchSize": 8, "maxTokenBudget": 256}},
            "sla": sla,
            "admission": {"requestTimeout": "30s"},
            "rollout": {"drainSeconds": 30},
            "resources": {"gpu": {"count": 0}},
        },
    }


@contextmanager
def monitored_chart(
    cluster: Cluster, folder: Path, *, has_rules: bool = False, webhook: str = NOBODY
) -> Iterator[tuple[ProcessNode, Stack]]:
    """Install the chart with its monitors, and scrape what they name."""
    with (
        process_node(cluster, folder) as node,
        monitoring(cluster, folder, webhook=webhook) as stack,
    ):
        stack.begin_operator()
        monitors = {"podMonitor": True, "servicePodMonitor": True, "prometheusRule": has_rules}
        with cluster.helm(SYSTEM) as helm:
            helm.install(
                ROOT / "charts" / "paceline",
                "paceline",
                {"monitoring": {**monitors, "labels": LABELS}},
                create_namespace=True,
                wait="watcher",
                timeout=180,
            )
        cluster.kubectl("create", "namespace", HOME)
        stack.begin_prometheus(jobs=JOBS)
        try:
            yield node, stack
        finally:
            place = f"--namespace={HOME}"
            cluster.try_kubectl("delete", "pisvc", "--all", place, "--timeout=60s")


@contextmanager
def monitored_service(
    cluster: Cluster,
    folder: Path,
    *,
    rate_rps: float,
    has_rules: bool = False,
    webhook: str = NOBODY,
) -> Iterator[MonitoredService]:
    """Let one service run under the chart's monitors, and ask it so many times a second."""
    with monitored_chart(cluster, folder, has_rules=has_rules, webhook=webhook) as (node, stack):
        declared = manifest(NAME, ttft={"p99": "4s"}, itl={"p99": "400ms"})
        cluster.kubectl("apply", "--filename=-", input=json.dumps(declared))
        clients = Clients(lambda: node.serving(HOME, NAME), NAME)
        clients.rate_rps = rate_rps
        service = MonitoredService(cluster, node, stack, clients)
        try:
            service.kubectl("wait", "--for=condition=Ready", f"pisvc/{NAME}", "--timeout=120s")
            yield service
        finally:
            clients.close()
