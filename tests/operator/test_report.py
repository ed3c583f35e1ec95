"""Status is written when it says something new, and events tell of transitions."""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline_api.inference_service import InferenceService
from paceline_api.status import Status
from paceline_operator.errors import ConflictError, from_answer
from paceline_operator.events import news
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Observation
from paceline_operator.report import Reporter
from paceline_operator.service_conditions import service_conditions
from paceline_operator.service_status import service_status
from paceline_operator.write_plan import plan_writes
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.reports import a_pod_report, a_report, observed
from paceline_testing.services import a_live_service, a_pod
from paceline_tuner.condition import Condition
from paceline_tuner.service_report import PodReport, ServiceReport, Throughput, TokenCost
from paceline_tuner.telemetry import PodAdapter

_WITH_ADAPTER: dict[str, Any] = {
    "engine": {"lora": {"maxAdapters": 4}},
    "adapters": [{"name": "sql", "uri": "file:///a"}],
}
_STATUS_WRITE = "apply InferenceService/quick/status"


async def _lead() -> None:
    """Hold the Lease."""


@dataclass
class World:
    """A reporter, its cluster and a clock that moves both times."""

    cluster: FakeCluster = field(default_factory=FakeCluster)
    clock: ManualClock = field(default_factory=ManualClock)
    report: ServiceReport | None = None
    is_ready: bool = False
    spec: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        raw = a_live_service(**self.spec)
        self.cluster.objects["InferenceService", "quick"] = raw
        self.reporter = Reporter(self.cluster, Metrics(), _lead, self.clock, lambda: 30.0)

    @property
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.clock())

    async def tell(self) -> None:
        """What one reconciliation reports."""
        raw = self.cluster.objects["InferenceService", "quick"]
        await self.tell_from(raw)

    async def tell_from(self, raw: dict[str, Any]) -> None:
        """The same, from what the watch happens to have seen."""
        service = self.reporter.freshest(InferenceService.read(raw))
        seen = Observation(service, {}, (a_pod(is_ready=self.is_ready),), self.report, self.now)
        decided = plan_writes(service.spec)
        conditions = service_conditions(seen, decided, problem="")
        await self.reporter.report(service, service_status(seen, decided, conditions))

    @property
    def num_writes(self) -> int:
        return self.cluster.writes.count(_STATUS_WRITE)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.cluster.objects["InferenceService", "quick"]["status"]
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        return next(dict(c) for c in self.status["conditions"] if c["type"] == kind)

    @property
    def events(self) -> list[tuple[str, str]]:
        return [
            (event["reason"], event["type"])
            for (kind, _), event in self.cluster.objects.items()
            if kind == "Event"
        ]


async def test_the_same_is_not_written_twice() -> None:
    """Nothing is stamped per loop."""
    world = World()
    await world.tell()
    world.clock.advance(3600)
    await world.tell()

    assert world.num_writes == 1


async def test_numbers_are_due_an_interval_after_the_last_write() -> None:
    """The tuner's rounds ask here before they tell of numbers: one clock decides."""
    world = World()
    is_due_at_first = world.reporter.numbers_are_due("default/quick")
    await world.tell()
    world.clock.advance(29)
    is_due_early = world.reporter.numbers_are_due("default/quick")
    world.clock.advance(1)

    assert (is_due_at_first, is_due_early) == (True, False)
    assert world.reporter.numbers_are_due("default/quick")


async def test_a_status_of_yesterday_does_not_cover_a_newer_one() -> None:
    """As of a leader that was paused while another wrote."""
    world = World()
    before = deepcopy(world.cluster.objects["InferenceService", "quick"])
    successor = Reporter(world.cluster, Metrics(), _lead, world.clock, lambda: 30.0)
    world.reporter, paused = successor, world.reporter
    world.is_ready = True
    await world.tell()
    world.reporter, world.is_ready = paused, False

    with pytest.raises(ConflictError):
        await world.tell_from(before)

    assert world.condition("WorkloadAvailable")["status"] == "True"


@pytest.mark.parametrize(("code", "counted"), [(503, 1.0), (409, 0.0)])
async def test_a_status_that_cannot_be_written_is_counted(code: int, counted: float) -> None:
    """A conflict is none: the watch is late, and the next look writes."""
    world, answer = World(), from_answer("apply", "quick/status", code, b"not now")
    world.cluster.refusals["InferenceService"] = answer

    with pytest.raises(type(answer)):
        await world.tell()

    registry = world.reporter.metrics.registry
    assert registry.get_sample_value("paceline_operator_status_write_errors_total") == counted


async def test_numbers_alone_wait_for_half_a_minute() -> None:
    """Rates for dashboards are in Prometheus; each write of status goes to etcd."""
    world = World(report=a_report())
    await world.tell()
    world.report = a_report(observed=observed(ttft_p99_ms=910.0))
    for _ in range(5):
        world.clock.advance(5)
        await world.tell()
    assert world.num_writes == 1

    world.clock.advance(5)
    await world.tell()

    assert world.num_writes == 2
    assert world.status["sla"]["observed"]["ttftP99"] == "910ms"


async def test_a_window_that_moved_is_no_news() -> None:
    """An idle service is not written to at all."""
    world = World(report=a_report())
    await world.tell()
    world.report = a_report(at=1_700_009_999.0)
    world.clock.advance(3600)
    await world.tell()

    assert world.num_writes == 1


async def test_a_transition_is_written_at_once() -> None:
    """With the numbers that belong to it."""
    met = Condition("SLAMet", "True", "Met", "all targets hold")
    world = World(report=a_report(conditions=(met,)), is_ready=True)
    await world.tell()
    missed = replace(met, status="False", reason="Violated", message="a target is missed")
    world.report = a_report(conditions=(missed,), observed=observed(tpot_p99_ms=99.0))
    world.clock.advance(1)
    await world.tell()

    assert world.num_writes == 2
    assert world.condition("SLAMet")["reason"] == "Violated"
    assert world.status["sla"]["observed"]["tpotP99"] == "99.0ms"
    assert ("Violated", "Warning") in world.events


async def test_a_conditions_time_moves_with_its_status_only() -> None:
    """`lastTransitionTime` tells since when."""
    world = World()
    await world.tell()
    before = world.condition("Ready")["lastTransitionTime"]
    stalled_since = world.condition("Stalled")["lastTransitionTime"]
    world.clock.advance(60)
    world.is_ready = True
    await world.tell()

    assert world.condition("ModelAvailable")["status"] == "True"
    assert world.condition("ModelAvailable")["lastTransitionTime"] != before
    assert world.condition("Stalled")["lastTransitionTime"] == stalled_since


async def test_a_watch_that_lags_behind_does_not_repeat_a_transition() -> None:
    """The old object comes again after our own write: it must not be taken for news."""
    world = World()
    stale = world.cluster.objects["InferenceService", "quick"]
    await world.tell_from(stale)
    world.clock.advance(5)

    await world.tell_from(stale)

    assert world.num_writes == 1


async def test_a_start_without_trouble_is_not_worth_an_event() -> None:
    """Nine conditions that become known are not nine events."""
    world = World()
    await world.tell()
    assert world.events == []

    world.is_ready = True
    await world.tell()

    assert ("Loaded", "Normal") in world.events


async def test_what_pods_acknowledged_is_named() -> None:
    """Only when all of them did; until then the last that all of them held."""
    world = World(is_ready=True)
    service = InferenceService.read(a_live_service())
    wanted = plan_writes(service.spec).config_hash
    world.report = a_report(
        pods=(a_pod_report(acknowledged_hash=wanted), a_pod_report(name="b")), acknowledged=False
    )
    await world.tell()
    assert "observedConfigHash" not in world.status

    world.report = a_report(pods=(a_pod_report(acknowledged_hash=wanted),), acknowledged=True)
    await world.tell()

    assert world.status["observedConfigHash"] == wanted


async def test_limits_are_summed_up_for_one_line() -> None:
    """`kubectl get pisvc` shows the span over the pods."""
    pods = (
        a_pod_report(name="a", batch_size=16, token_budget=1024),
        a_pod_report(name="b", batch_size=48, token_budget=1024),
    )
    world = World(report=a_report(pods=pods))
    await world.tell()

    assert world.status["tuning"]["summary"] == {"batchSize": "16-48", "tokenBudget": "1024"}
    assert [pod["name"] for pod in world.status["tuning"]["pods"]] == ["a", "b"]
    assert world.status["tuning"]["history"][0]["from"] == "32/2048"
    assert world.status["tuning"]["history"][0]["to"] == "32/160"


async def test_throughput_and_cost_are_told_with_three_digits() -> None:
    """`kubectl get pisvc -o wide` shows them; without a price there is no cost to show."""
    given = Throughput(output_tps=1234.0, prompt_tps=0.456, finished_rps=12.0)
    world = World(report=a_report(throughput=given, cost=TokenCost(1234.5, 0.0123)))
    await world.tell()

    assert world.status["throughput"] == {
        "outputTokensPerSecond": "1230",
        "promptTokensPerSecond": "0.456",
        "requestsPerSecond": "12.0",
        "costPerMillionOutputTokens": "1230",
        "costPerMillionTokens": "0.0123",
    }


def _a_pod_with(name: str, *adapters: PodAdapter, **changes: Any) -> PodReport:
    return a_pod_report(name=name, adapters=adapters, **changes)


async def test_adapters_are_counted_over_the_pods() -> None:
    """A pod that still has the adapter of an earlier URI does not have this one."""
    world = World(
        report=a_report(
            pods=(
                _a_pod_with("a", PodAdapter("sql", "/a", "loaded")),
                _a_pod_with("b", PodAdapter("sql", "/old", "loaded")),
                _a_pod_with("c", PodAdapter("sql", "/a", "loading")),
                _a_pod_with("d", PodAdapter("sql", "/a", "loaded"), error="no answer in 3 s"),
            )
        ),
        spec=_WITH_ADAPTER,
    )
    await world.tell()

    assert world.status["adapters"] == [{"name": "sql", "loadedPods": 1, "pods": 3}]
    assert ("AdapterRefused", "Warning") not in world.events


async def test_a_refused_adapter_is_told_once() -> None:
    """In the engine's words; a second pod that says the same is no news, another reason is."""
    refused = PodAdapter("sql", "/a", "refused", "/a has no adapter_config.json.")
    world = World(report=a_report(pods=(_a_pod_with("a", refused),)), spec=_WITH_ADAPTER)
    await world.tell()
    assert world.status["adapters"][0]["message"] == "/a has no adapter_config.json."
    assert world.events.count(("AdapterRefused", "Warning")) == 1

    world.report = a_report(pods=(_a_pod_with("a", refused), _a_pod_with("b", refused)))
    world.clock.advance(5)
    await world.tell()
    assert world.events.count(("AdapterRefused", "Warning")) == 1

    rank = replace(refused, message="The adapter's rank is 64.")
    world.report = a_report(pods=(_a_pod_with("a", rank),))
    world.clock.advance(5)
    await world.tell()
    assert world.events.count(("AdapterRefused", "Warning")) == 2


async def test_adapters_are_forgotten_with_the_manifest() -> None:
    """And a restarted operator repeats what status says until the pods were asked."""
    loaded = PodAdapter("sql", "/a", "loaded")
    world = World(report=a_report(pods=(_a_pod_with("a", loaded),)), spec=_WITH_ADAPTER)
    await world.tell()
    world.report = None
    world.clock.advance(60)
    await world.tell()
    assert world.status["adapters"][0]["loadedPods"] == 1

    world.cluster.objects["InferenceService", "quick"]["spec"].pop("adapters")
    await world.tell()

    assert "adapters" not in world.status


async def test_an_empty_object_is_not_written() -> None:
    """Applied over a filled one it becomes null, which the schema refuses."""
    world = World(report=a_report(capacity_rps=None, utilization=None))
    await world.tell()

    assert "observed" in world.status["sla"]
    assert "capacity" not in world.status["sla"]


async def test_a_hundred_pods_are_listed() -> None:
    """Status has an upper size; the others are counted."""
    pods = tuple(a_pod_report(name=f"pod-{number:03}") for number in range(103))
    world = World(report=a_report(pods=pods))
    await world.tell()

    assert len(world.status["tuning"]["pods"]) == 100
    assert world.status["tuning"]["podsOmitted"] == 3


@pytest.mark.parametrize("path", ["replicas", "conditions[].observedGeneration"])
async def test_a_crd_that_knows_less_makes_no_storm(path: str) -> None:
    """What it drops, of a list's items too, would be news in every reconcile; it is told once."""
    world = World(is_ready=True)
    world.cluster.unknown_status = {path}
    for _ in range(5):
        await world.tell()
        world.clock.advance(60)

    assert world.num_writes == 1
    assert "replicas" not in world.status or "observedGeneration" not in world.condition("Ready")
    assert [event for event in world.events if event[0] == "CRDOutdated"] == [
        ("CRDOutdated", "Warning")
    ]


async def test_a_change_is_written_to_a_crd_that_knows_less() -> None:
    world = World()
    world.cluster.unknown_status = {"replicas"}
    await world.tell()

    world.is_ready = True
    await world.tell()
    await world.tell()

    assert world.num_writes == 2


def test_trouble_is_told_by_its_cause_alone() -> None:
    """Ready says the same in the same words; what only Ready says is told by it."""
    service = InferenceService.read(a_live_service())

    def told(*conditions: tuple[str, str, str]) -> list[str]:
        at = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "why"}
        entries = [
            {"type": kind, "status": status, "reason": reason, **at}
            for kind, status, reason in conditions
        ]
        status = Status.model_validate({"conditions": entries})
        return [event["action"] for event in news(service, status)]

    cause = ("WorkloadAvailable", "False", "Unschedulable")
    assert told(cause, ("Ready", "False", "Unschedulable")) == ["WorkloadAvailable"]
    assert told(cause, ("Ready", "False", "Crashing")) == ["WorkloadAvailable", "Ready"]
    assert told(("Ready", "False", "Unschedulable")) == ["Ready"]
