"""The chart's monitors, rules and metrics in the hands of what a user's cluster has for them.

Alertmanager, prometheus-adapter and the control plane's autoscaler are real, and so is all of
`paceline_testing.monitored_service`.
"""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import yaml

from local_cluster.cluster import Cluster
from paceline_testing.monitored_service import (
    HOME,
    JOBS,
    NAME,
    OURS,
    ROOT,
    MonitoredService,
    monitored_service,
)

pytestmark = [pytest.mark.prometheus, pytest.mark.timeout(1200, func_only=True)]

Json = dict[str, Any]


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


@dataclass(frozen=True, slots=True)
class World:
    """The service, its autoscaler, and who is told of alerts."""

    service: MonitoredService
    notifications: Notifications

    def replicas_over(self, *, seconds: float, every_s: float) -> list[int]:
        """Look at what the autoscaler wants, for so long."""
        found, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            found.append(int(self.service.read()["spec"]["replicas"]))
            time.sleep(every_s)
        return found

    def eventually(self, reached: Callable[[], object], *, within_s: float = 300) -> None:
        self.service.eventually(reached, within_s=within_s, tell=self._stands)

    def _stands(self) -> str:
        return f"{self.service.kubectl('describe', 'hpa')}\n{self.service.stack.alerts()}"


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service that three requests a second ask, and its autoscaler."""
    folder = tmp_path_factory.mktemp("prometheus")
    rules = yaml.safe_load((ROOT / "examples" / "prometheus-adapter.yaml").read_text())
    with (
        a_webhook() as notifications,
        monitored_service(
            cluster, folder, has_rules=True, webhook=notifications.url, rate_rps=3.0
        ) as service,
    ):
        service.stack.begin_adapter(rules["rules"]["custom"])
        service.kubectl("apply", "--filename=-", input=json.dumps(an_autoscaler()))
        yield World(service, notifications)


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
    world.eventually(lambda: {t["scrapePool"] for t in world.service.stack.targets()} == JOBS)
    world.eventually(lambda: all(t["health"] == "up" for t in world.service.stack.targets()))
    world.eventually(lambda: world.service.metric(f"paceline_capacity_utilization{OURS}"))

    budget = f'paceline:sla_error_budget{{namespace="{HOME}"}}'
    world.eventually(lambda: world.service.metric(budget))

    assert world.service.metric("paceline_operator_is_leader") == 1.0
    up = f'paceline_engine_up{{namespace="{HOME}", model_name="{NAME}"}}'
    assert world.service.metric(up) == 1.0
    assert world.service.metric(budget) == pytest.approx(0.01)


def test_an_autoscaler_follows_the_utilization_and_scaling_in_drains(world: World) -> None:
    """More arrives than one pod serves: a second comes. It goes again without a lost request."""
    clients = world.service.clients
    codes = clients.codes
    assert world.service.read()["spec"]["replicas"] == 1

    clients.rate_rps = 1.2 * world.service.one_pod_rps()
    world.eventually(lambda: world.service.read()["status"]["readyReplicas"] >= 2)
    alone = len(codes)
    # The utilization is that of both, and nobody is refused for what had queued before one.
    world.eventually(lambda: len(codes) >= alone + 200 and clients.are_answered(100))
    clients.rate_rps, before = 2.0, len(codes)
    world.eventually(lambda: world.service.read()["status"]["replicas"] == 1)

    assert set(codes[before:]) == {200}
    assert world.service.read()["spec"]["replicas"] == 1


def test_a_broken_sla_reaches_a_person_and_resolves_when_it_is_mended(world: World) -> None:
    """The chart's own windows: an hour and five minutes, two minutes long. Nothing else pages."""
    name, told = "PacelineSLABurningFast", world.notifications
    world.service.clients.rate_rps = 2.0
    assert not told.of(name, "firing")

    world.service.node.slowdown.write_text("30")
    world.eventually(lambda: told.of(name, "firing"))
    world.service.node.slowdown.unlink()
    world.service.clients.rate_rps = 6.0
    world.eventually(lambda: told.of(name, "resolved"), within_s=400)

    [alert] = told.of(name, "firing")[:1]
    pages = {a["labels"]["alertname"] for a in told.alerts if a["labels"]["severity"] == "critical"}
    assert alert["labels"]["severity"] == "critical"
    assert (alert["labels"]["namespace"], alert["labels"]["model_name"]) == (HOME, NAME)
    assert "docs/runbooks/sla-burning.md#" in alert["annotations"]["runbook_url"]
    assert pages == {name}


@pytest.mark.timeout(2400, func_only=True)
def test_tuner_and_autoscaler_leave_each_other_alone(world: World) -> None:
    """Ten minutes of one load: replicas and limits come to rest, and nobody is refused.

    The load is more than one pod serves, however fast the machine is. How many pods that takes
    depends on the machine, as they share its cores; that they come to rest does not.
    """
    swinging = f"paceline_tuner_swinging_pods{OURS}"
    clients = world.service.clients
    codes = clients.codes
    clients.rate_rps = 1.2 * world.service.one_pod_rps()
    world.eventually(lambda: world.service.read()["status"]["readyReplicas"] >= 2)
    served = len(codes)
    # What had queued before one pod is served, and nobody is refused for it any more.
    world.eventually(lambda: len(codes) >= served + 200 and clients.are_answered(100))
    # Limits follow the change of the load, and that is remembered for ten minutes.
    world.eventually(lambda: world.service.metric(swinging) == 0.0, within_s=900)

    before, replicas = len(codes), world.replicas_over(seconds=600, every_s=5)
    answers = set(codes[before:])

    moves = [after - now for now, after in pairwise(replicas) if after != now]
    turns = sum(now * after < 0 for now, after in pairwise(moves))
    print(f"replicas over ten minutes: {replicas}")  # noqa: T201 - shown with -s, or on failure
    assert turns <= 1
    assert len(set(replicas[len(replicas) // 2 :])) == 1
    assert answers == {200}
    # Now, not at most: this is of the ten minutes before, which are those of the test.
    assert world.service.metric(swinging) == 0.0
