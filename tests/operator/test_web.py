"""Probes tell the truth about the start, the Lease and the tasks."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from paceline_api.labels import Manifest
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.operation import Operation
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.settings import OperatorSettings
from paceline_operator.token_key import TokenKey
from paceline_operator.watch_probe import WatchProbe
from paceline_operator.web import create_app
from paceline_operator.workqueue import WorkQueue
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.one_service import OneService
from paceline_testing.reports import a_report
from paceline_testing.services import a_live_service
from paceline_testing.simulated import a_laptop, clients
from paceline_testing.trial import Trial
from paceline_testing.tunings import a_tuning
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_spec import SLA, TuningSpec

Client = TestClient[web.Request, web.Application]


class Nothing:
    """`Watched`, of an empty cluster."""

    def keys(self) -> Iterable[str]:
        return ()

    def service(self, key: str) -> Manifest | None:
        raise AssertionError(key)

    def children(self, key: str) -> Iterable[Manifest]:
        raise AssertionError(key)

    def pods(self, key: str) -> Iterable[Manifest]:
        raise AssertionError(key)

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return ()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def operation(clock: ManualClock) -> Operation:
    return Operation(OperatorSettings(), Metrics(), queue=WorkQueue(clock))


@pytest.fixture
async def client(operation: Operation) -> AsyncIterator[Client]:
    async with TestClient(TestServer(create_app(operation))) as client:
        yield client


async def _lead(operation: Operation, clock: ManualClock) -> None:
    operation.leader = Leader(FakeCluster(), "paceline", "lease", "a", clock)
    await operation.leader.try_once()


_KEY = TokenKey(b"k" * 32)
_BEARER = {"Authorization": f"Bearer {_KEY.decisions_token()}"}


async def _ask(
    client: Client, path: str, headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, str]:
    answer = await client.get(path, headers=headers)
    return answer.status, await answer.text()


async def test_a_failed_start_is_not_ready(client: Client, operation: Operation) -> None:
    """The process lives and tries again: only readiness can tell."""
    assert await _ask(client, "/readyz") == (503, "not started yet\n")

    operation.start_problem = "start failed: no kubeconfig"

    assert await _ask(client, "/readyz") == (503, "start failed: no kubeconfig\n")
    assert (await _ask(client, "/healthz"))[0] == 200


async def test_a_standby_is_ready(client: Client, operation: Operation, clock: ManualClock) -> None:
    """It is ready to take over, and says that it does not lead."""
    operation.has_started = True
    assert await _ask(client, "/readyz") == (200, "standing by\n")

    await _lead(operation, clock)

    assert await _ask(client, "/readyz") == (200, "leading\n")


async def test_a_watch_that_hears_nothing_is_not_ready(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """The process lives, leads perhaps, and knows nothing of what happens."""
    cluster = FakeCluster()
    operation.has_started = True
    operation.probe = WatchProbe(cluster, (), Nothing(), clock)
    await operation.probe.try_once()
    assert (await _ask(client, "/readyz"))[0] == 200

    cluster.is_reachable = False
    clock.advance(300)
    await operation.probe.try_once()

    status, text = await _ask(client, "/readyz")
    assert status == 503
    assert text.startswith("the API server has not answered for 300 s: ")
    assert (await _ask(client, "/healthz"))[0] == 200
    _, metrics = await _ask(client, "/metrics")
    assert "paceline_operator_api_silence_seconds 300.0" in metrics


async def test_a_deaf_watch_is_not_alive(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """What it knows cannot be trusted any more: a new process lists everything anew."""
    cluster = FakeCluster()
    cluster.objects["InferenceService", "quick"] = a_live_service()
    operation.probe = WatchProbe(cluster, (), Nothing(), clock)
    for _ in range(10):
        await operation.probe.try_once()
        clock.advance(15)

    status, text = await _ask(client, "/healthz")

    assert status == 500
    assert "the watch has missed what happened to default/quick" in text
    assert "paceline_operator_watch_problem 1.0" in (await _ask(client, "/metrics"))[1]


async def test_a_leader_whose_queue_is_stuck_is_not_alive(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """A worker hangs: a new process is the only cure. A standby's queue waits for its leader."""
    operation.queue.add("default/quick")
    clock.advance(3600)
    assert (await _ask(client, "/healthz"))[0] == 200

    await _lead(operation, clock)
    assert (await _ask(client, "/healthz"))[0] == 200  # it has only just taken over

    assert operation.leader is not None
    for _ in range(122):
        clock.advance(5)
        await operation.leader.try_once()

    assert (await _ask(client, "/healthz"))[0] == 500


async def test_a_task_that_ended_is_not_alive(client: Client, operation: Operation) -> None:
    """Our tasks run for ever: an end is a bug, whatever it was."""

    async def crash() -> None:
        raise RuntimeError("a bug")

    operation._begin(crash(), "worker 0")
    await asyncio.gather(*operation._tasks, return_exceptions=True)
    await asyncio.sleep(0)

    status, text = await _ask(client, "/healthz")
    assert status == 500
    assert "worker 0 ended" in text


async def test_metrics_are_read_at_the_scrape(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """Gauges are never out of date."""
    operation.queue.add("default/quick")
    clock.advance(2)
    await _lead(operation, clock)

    _, text = await _ask(client, "/metrics")

    assert "paceline_operator_queue_depth 1.0" in text
    assert "paceline_operator_queue_oldest_age_seconds 2.0" in text
    assert "paceline_operator_is_leader 1.0" in text
    assert 'paceline_operator_build_info{version="' in text
    assert 'paceline_operator_reconcile_total{result="error"} 0.0' in text


async def test_capacity_is_shown_by_the_leader_while_it_is_news(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """An autoscaler that finds no number holds; one that finds an old number scales by it."""
    loop = TuningLoop(AiohttpPodClient(), time.time)
    stub = a_tuning(Nothing(), loop, operation.metrics, clock)
    stub.reports["ml/chat"] = a_report(utilization=0.48)
    stub.reports["ml/new"] = a_report(utilization=None, capacity_rps=None)
    for key, report in [*stub.reports.items()]:
        stub.reports[key] = replace(report, at=time.time())
    stub.reports["ml/old"] = a_report(at=time.time() - 300)
    operation.tuning = stub
    operation.watched = Nothing()
    name = "paceline_capacity_utilization{inferenceservice="

    assert name not in (await _ask(client, "/metrics"))[1]
    await _lead(operation, clock)
    _, text = await _ask(client, "/metrics")

    assert [line for line in text.splitlines() if line.startswith(name)] == [
        f'{name}"chat",namespace="ml"}} 0.48'
    ]
    assert 'paceline_recommended_replicas{inferenceservice="chat",namespace="ml"} 1.0' in text


async def test_who_leads_speaks_for_the_services(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """Two replicas with two opinions would be one alert too many."""
    condition = {"type": "DeviceHealthy", "status": "False"}
    operation.watched = OneService(a_live_service() | {"status": {"conditions": [condition]}})
    line = (
        'paceline_condition{inferenceservice="quick",namespace="default",type="DeviceHealthy"} 0.0'
    )

    assert line not in (await _ask(client, "/metrics"))[1]
    await _lead(operation, clock)
    assert line in (await _ask(client, "/metrics"))[1]


@pytest.mark.slow
async def test_decisions_are_annotations_for_grafana(
    client: Client, operation: Operation, clock: ManualClock
) -> None:
    """The JSON and Infinity data sources read time, timeEnd, tags and text of each row."""
    trial = Trial(
        a_laptop(clients(0.8)), TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash="one"), at=1000.0
    )
    await trial.run(60)
    operation.tuning = a_tuning(Nothing(), trial.loop, operation.metrics, clock)
    operation.token_key = _KEY
    change = next(d for d in trial.loop.explain("ns/name", "pod") if d.change is not None)

    answer = await client.get("/decisions", headers=_BEARER)
    marks = await answer.json()
    after = f"/decisions?since={(trial.at + 1) * 1e3:.0f}"
    later = await (await client.get(after, headers=_BEARER)).json()

    assert answer.content_type == "application/json"
    assert all(mark.keys() == {"time", "timeEnd", "tags", "text"} for mark in marks)
    first = next(mark for mark in marks if "change" in mark["tags"])
    assert first["time"] == first["timeEnd"] == change.at * 1e3
    assert {"paceline", "ns/name", "pod"} <= set(first["tags"])
    assert "tokens 2048 →" in first["text"]
    assert [mark["time"] for mark in marks] == sorted(mark["time"] for mark in marks)
    assert later == []


async def test_a_replica_that_does_not_tune_has_no_decisions(
    client: Client, operation: Operation
) -> None:
    """A dashboard may ask any replica."""
    operation.token_key = _KEY

    assert await _ask(client, "/decisions", _BEARER) == (200, "[]")
    assert (await _ask(client, "/decisions?since=yesterday", _BEARER))[0] == 400
    assert (await _ask(client, "/decisions?since=nan", _BEARER))[0] == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {_KEY.runtime_token('default/quick')}"},
        {"Authorization": f"Basic {_KEY.decisions_token()}"},
        {"Authorization": "Bearer \u00e9"},
    ],
    ids=["none", "empty", "a pod's", "another scheme", "not ASCII"],
)
async def test_decisions_are_for_who_bears_the_token(
    client: Client, operation: Operation, headers: dict[str, str]
) -> None:
    """They name every service and pod; probes and metrics stay open."""
    assert (await _ask(client, "/decisions"))[0] == 503
    operation.token_key = _KEY

    assert (await _ask(client, "/decisions", headers))[0] == 401
    assert (await _ask(client, "/metrics"))[0] == 200
