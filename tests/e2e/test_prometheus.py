"""The chart's monitors, rules and metrics in the hands of what a user's cluster has for them.

Real are the control plane with its autoscaler, the Prometheus Operator, Prometheus, Alertmanager,
prometheus-adapter, the operator from the chart's Deployment, and each pod's sidecar, scheduler and
pacer. Pods are processes, and their devices only take time (`paceline_testing.timed_engine`).
"""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.cluster import Cluster
from local_cluster.monitoring import LABELS, Stack, monitoring
from paceline_testing.process_node import ProcessNode, process_node
from paceline_testing.steady_clients import Clients
from paceline_testing.waiting import wait_until

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(1200, func_only=True)]

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline"
SYSTEM, HOME, NAME = "paceline-system", "ml", "chat"
JOBS = {f"podMonitor/{SYSTEM}/paceline/0", f"podMonitor/{SYSTEM}/paceline-services/0"}
OURS = f'{{namespace="{HOME}", inferenceservice="{NAME}"}}'
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


@dataclass
class Notifications:
    """What Alertmanager sent, in order."""

    url: str = ""
    alerts: list[Json] = field(default_factory=list)

    def of(self, name: str, status: str) -> list[Json]:
        return [
            alert
            for alert in [*self.alerts]
            if alert["labels"]["alertname"] == name and alert["status"] == status
        ]


@contextmanager
def a_webhook() -> Iterator[Notifications]:
    """Receive on a free port."""
    received = Notifications()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.alerts.extend(json.loads(body)["alerts"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    received.url = f"http://127.0.0.1:{server.server_port}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True)
class World:
    """All of it."""

    cluster: Cluster
    node: ProcessNode
    stack: Stack
    clients: Clients
    notifications: Notifications

    def service(self) -> Json:
        found: Json = json.loads(
            self.cluster.kubectl("get", "pisvc", NAME, f"--namespace={HOME}", "-ojson")
        )
        return found

    def metric(self, expression: str) -> float | None:
        found = self.stack.query(expression)
        return float(found[0]["value"][1]) if found else None

    def replicas_over(self, *, seconds: float, every_s: float) -> list[int]:
        """Look at what the autoscaler wants, for so long."""
        found, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            found.append(int(self.service()["spec"]["replicas"]))
            time.sleep(every_s)
        return found

    def eventually(self, reached: Callable[[], object], *, within_s: float = 240) -> None:
        """Wait, and tell how things stand where it does not come."""

        def look() -> object:
            time.sleep(1)
            return reached()

        try:
            wait_until(look, within_s=within_s)
        except AssertionError as late:
            status = self.service().get("status")
            hpa = self.cluster.kubectl("describe", "hpa", f"--namespace={HOME}")
            alerts = self.stack.alerts()
            raise AssertionError(f"{late}\n{status}\n{hpa}\n{alerts}\n{self.node.log}") from late


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The chart with its monitoring, a service with an autoscaler, and clients."""
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        a_webhook() as notifications,
        process_node(cluster, folder) as node,
        monitoring(cluster, folder, webhook=notifications.url) as stack,
    ):
        stack.begin_operator()
        with cluster.helm(SYSTEM) as helm:
            values = {"podMonitor": True, "servicePodMonitor": True, "prometheusRule": True}
            helm.install(
                CHART,
                "paceline",
                {"monitoring": {**values, "labels": LABELS}},
                create_namespace=True,
                wait="watcher",
                timeout=180,
            )
        cluster.kubectl("create", "namespace", HOME)
        cluster.kubectl("apply", "--filename=-", input=json.dumps(SERVICE))
        stack.begin_prometheus(jobs=JOBS)
        rules = yaml.safe_load((ROOT / "examples" / "prometheus-adapter.yaml").read_text())
        clients = Clients(lambda: node.serving(HOME, NAME), NAME)
        clients.rate_rps = 3.0
        place = f"--namespace={HOME}"
        cluster.kubectl("wait", "--for=condition=Ready", f"pisvc/{NAME}", place, "--timeout=120s")
        stack.begin_adapter(rules["rules"]["custom"])
        cluster.kubectl("apply", "--filename=-", place, input=json.dumps(an_autoscaler()))
        try:
            yield World(cluster, node, stack, clients, notifications)
        finally:
            clients.close()
            cluster.try_kubectl("delete", "pisvc", "--all", place, "--timeout=60s")


def an_autoscaler() -> Json:
    """The example's, for this service, and quicker to scale in: nobody waits five minutes here."""
    hpa: Json = yaml.safe_load((ROOT / "examples" / "hpa.yaml").read_text())
    hpa["metadata"]["name"] = hpa["spec"]["scaleTargetRef"]["name"] = NAME
    hpa["spec"]["metrics"][0]["object"]["describedObject"]["name"] = NAME
    hpa["spec"]["maxReplicas"] = 3
    hpa["spec"]["behavior"]["scaleUp"]["stabilizationWindowSeconds"] = 30
    hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] = 30
    return hpa


def test_prometheus_scrapes_what_the_charts_monitors_name(world: World) -> None:
    """Operator and pods, by the labels of the chart; a service's metrics carry its namespace."""
    world.eventually(lambda: {t["scrapePool"] for t in world.stack.targets()} == JOBS)
    world.eventually(lambda: all(t["health"] == "up" for t in world.stack.targets()))
    world.eventually(lambda: world.metric(f"paceline_capacity_utilization{OURS}"))

    budget = f'paceline:sla_error_budget{{namespace="{HOME}"}}'
    world.eventually(lambda: world.metric(budget))

    assert world.metric("paceline_operator_is_leader") == 1.0
    assert world.metric(f'paceline_engine_up{{namespace="{HOME}", model_name="{NAME}"}}') == 1.0
    assert world.metric(budget) == pytest.approx(0.01)


def test_an_autoscaler_follows_the_utilization_and_scaling_in_drains(world: World) -> None:
    """More arrives than one pod serves: a second comes. It goes again without a lost request."""
    codes = world.clients.codes
    assert world.service()["spec"]["replicas"] == 1

    world.clients.rate_rps = 11.0
    world.eventually(lambda: world.service()["status"]["readyReplicas"] >= 2)
    alone = len(codes)
    world.eventually(lambda: len(codes) >= alone + 200)  # so that the utilization is that of both
    world.clients.rate_rps, before = 2.0, len(codes)
    world.eventually(lambda: world.service()["status"]["replicas"] == 1)

    assert set(codes[before:]) == {200}
    assert world.service()["spec"]["replicas"] == 1


def test_a_broken_sla_reaches_a_person_and_resolves_when_it_is_mended(world: World) -> None:
    """The chart's own windows: an hour and five minutes, two minutes long. Nothing else pages."""
    name, told = "PacelineSLABurningFast", world.notifications
    world.clients.rate_rps = 2.0
    assert not told.of(name, "firing")

    world.node.slowdown.write_text("30")
    world.eventually(lambda: told.of(name, "firing"))
    world.node.slowdown.unlink()
    world.clients.rate_rps = 6.0
    world.eventually(lambda: told.of(name, "resolved"), within_s=400)

    [alert] = told.of(name, "firing")[:1]
    pages = {a["labels"]["alertname"] for a in told.alerts if a["labels"]["severity"] == "critical"}
    assert alert["labels"]["severity"] == "critical"
    assert (alert["labels"]["namespace"], alert["labels"]["model_name"]) == (HOME, NAME)
    assert alert["annotations"]["runbook_url"].endswith("docs/runbooks/sla-burning.md")
    assert pages == {name}


def test_tuner_and_autoscaler_leave_each_other_alone(world: World) -> None:
    """Ten minutes of one load: replicas and limits come to rest, and nobody is refused.

    How many pods it wants depends on how fast the machine is; that they come to rest does not.
    """
    codes, world.clients.rate_rps = world.clients.codes, 11.0
    world.eventually(lambda: world.service()["status"]["readyReplicas"] >= 2)
    served = len(codes)
    world.eventually(lambda: len(codes) >= served + 200)  # what had queued before one pod is served

    before, replicas = len(codes), world.replicas_over(seconds=600, every_s=5)
    answers = set(codes[before:])

    moves = [after - now for now, after in pairwise(replicas) if after != now]
    turns = sum(now * after < 0 for now, after in pairwise(moves))
    print(f"replicas over ten minutes: {replicas}")  # noqa: T201 - shown with -s, or on failure
    assert turns <= 1
    assert len(set(replicas[len(replicas) // 2 :])) == 1
    assert answers == {200}
    assert world.metric(f"max_over_time(paceline_tuner_swinging_pods{OURS}[10m])") == 0.0
