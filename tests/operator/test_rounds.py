"""Each service is tuned on its own interval, and at once when something changed."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from paceline_api.labels import Manifest
from paceline_operator.fence import Fence
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.rounds import Rounds, next_round
from paceline_operator.tuning import Tuning
from paceline_testing.clock import ManualClock
from paceline_testing.fake_cluster import FakeCluster
from paceline_testing.reports import a_report
from paceline_testing.services import a_live_service
from paceline_testing.tunings import a_tuning
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import ServiceTarget

_KEY = "default/quick"
_WITHIN_S = 30.0


def _a_raw_pod(name: str = "quick-1", *, is_ready: bool = True, ip: str = "10.88.0.7") -> Manifest:
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": {"nodeName": "n1"},
        "status": {
            "podIP": ip,
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            "initContainerStatuses": [{"name": "sidecar", "state": {"running": {}}}],
        },
    }


@dataclass
class FakeWatched:
    """What the watches know."""

    raw: Manifest | None = field(default_factory=a_live_service)
    raw_pods: list[Manifest] = field(default_factory=lambda: [_a_raw_pod()])

    def keys(self) -> Iterable[str]:
        return [_KEY]

    def service(self, key: str) -> Manifest | None:
        assert key == _KEY
        return self.raw

    def children(self, key: str) -> Iterable[Manifest]:
        assert key == _KEY
        return ()

    def pods(self, key: str) -> Iterable[Manifest]:
        assert key == _KEY
        return self.raw_pods

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        return ()


@dataclass
class FakeTuner:
    """Hands each target over to the test."""

    targets: asyncio.Queue[ServiceTarget] = field(default_factory=asyncio.Queue)
    forgotten: list[str] = field(default_factory=list)
    failures: int = 0

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        self.targets.put_nowait(target)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("a bug")
        return a_report(key=target.key)

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    def annotations(self, since_ms: float) -> list[Annotation]:
        assert since_ms >= 0.0
        return []

    async def next(self) -> ServiceTarget:
        return await asyncio.wait_for(self.targets.get(), _WITHIN_S)


@dataclass
class World:
    """Rounds with fakes at all its ports."""

    watched: FakeWatched = field(default_factory=FakeWatched)
    tuner: FakeTuner = field(default_factory=FakeTuner)
    concluded: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    token: str = "secret"
    are_due: bool = True
    """Whether numbers are."""

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.leader = Leader(FakeCluster(), "paceline", "lease", "a", self.clock)
        self.tuning = Tuning(
            self.watched,
            lambda _: self.token,
            self.concluded.put_nowait,
            lambda _: self.are_due,
            Metrics(),
            (self.leader,),
        )
        self.tuning.tuner = Rounds(self.tuner, self.tuning, Fence(self.clock))


@asynccontextmanager
async def a_world(*, leads: bool = True, **parts: Any) -> AsyncIterator[World]:
    world = World(**parts)
    if leads:
        await world.leader.try_once()
    lead = asyncio.create_task(world.tuning.run())
    yield world
    lead.cancel()
    assert isinstance(world.tuning.tuner, Rounds)
    await world.tuning.tuner.stop()


async def test_a_pod_that_leaves_gets_no_limits_any_more() -> None:
    """It serves what it has with its last ones; its share of the load is the others' now."""
    leaving = _a_raw_pod("quick-2", ip="10.88.0.8")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    async with a_world(watched=FakeWatched(raw_pods=[_a_raw_pod(), leaving])) as world:
        world.tuning.follow(_KEY)

        target = await world.tuner.next()

    assert [pod.name for pod in target.pods] == ["quick-1"]


async def test_a_followed_service_is_tuned_at_once() -> None:
    """With its ready pods, their addresses and the token."""
    async with a_world() as world:
        world.tuning.follow(_KEY)

        target = await world.tuner.next()
        assert await asyncio.wait_for(world.concluded.get(), _WITHIN_S) == _KEY

        (pod,) = target.pods
        assert (pod.name, pod.admin_url, pod.token, pod.node) == (
            "quick-1",
            "http://10.88.0.7:8001",
            "secret",
            "n1",
        )
        assert target.spec.sla.ttft_p99_ms == 500.0
        assert world.tuning.reports[_KEY].key == _KEY


async def test_a_pod_is_called_as_it_is_not_as_the_next_one_will_be() -> None:
    """While a rollout brings TLS to port 8001, pods of both kinds are tuned."""
    other = _a_raw_pod("quick-2", ip="10.88.0.8")
    other["spec"]["initContainers"] = [{"name": "sidecar", "ports": [{"name": "admin-tls"}]}]
    tls = {"secretRef": {"name": "cert"}, "caBundle": "-----BEGIN CERTIFICATE-----"}
    raw = a_live_service(api={"tls": tls})
    async with a_world(watched=FakeWatched(raw=raw, raw_pods=[_a_raw_pod(), other])) as world:
        world.tuning.follow(_KEY)

        plain, secure = (await world.tuner.next()).pods

    assert (plain.admin_url, plain.ca_bundle) == ("http://10.88.0.7:8001", "")
    assert secure.admin_url == "https://10.88.0.8:8001"
    assert secure.ca_bundle == tls["caBundle"]
    assert secure.server_name == f"{_KEY.split('/')[1]}.{_KEY.split('/', maxsplit=1)[0]}.svc"


async def test_the_tuner_hears_what_status_tells_of_an_experiment() -> None:
    """An operator that starts anew must not try again what was rolled back."""
    raw = a_live_service()
    raw["status"] = {
        "tuning": {
            "experiment": {"name": "one", "kind": "Canary", "verdict": "Worse", "reason": "slower"}
        }
    }
    async with a_world(watched=FakeWatched(raw=raw)) as world:
        world.tuning.follow(_KEY)

        target = await world.tuner.next()

        assert target.previous_report is not None
        assert (target.previous_report.name, target.previous_report.verdict) == ("one", "Worse")


async def test_the_tuner_hears_which_pod_tries_new_images() -> None:
    """It is one of the service's pods, and its requests are compared with the others'."""
    since = "2026-01-01T00:00:00Z"
    images = {"engine": "mine:2", "sidecar": "sidecar:1"}
    rollout = {"phase": "Canary", "images": images, "reason": "starts", "since": since}
    raw = a_live_service(rollout={"canarySeconds": 60}) | {"status": {"rollout": rollout}}
    canary = _a_raw_pod("quick-canary-1")
    canary["metadata"]["labels"]["serving.paceline.dev/canary"] = "true"
    watched = FakeWatched(raw, [_a_raw_pod(), canary])

    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        target = await world.tuner.next()

    assert {pod.name: pod.is_canary for pod in target.pods} == {
        "quick-1": False,
        "quick-canary-1": True,
    }
    assert (target.image_trial, target.image_trial_s) == (f"mine:2 sidecar:1 {since}", 60)


async def test_the_tuner_hears_how_many_pods_are_wanted() -> None:
    """Those that start are wanted, too: ready ones alone would be fewer than there will be."""
    starting = _a_raw_pod("quick-2", is_ready=False)
    watched = FakeWatched(a_live_service(replicas=2), [_a_raw_pod(), starting])

    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        target = await world.tuner.next()

    assert (len(target.pods), target.replicas) == (1, 2)


async def test_a_new_target_does_not_wait_for_the_interval() -> None:
    """It must reach all pods within ten seconds, whatever the interval."""
    slow = {"interval": "60s"}
    watched = FakeWatched(raw=a_live_service(tuning=slow))
    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        first = await world.tuner.next()

        watched.raw = a_live_service(tuning=slow, sla={"ttft": {"p99": "300ms"}})
        world.tuning.follow(_KEY)
        second = await world.tuner.next()

        assert first.spec.sla.ttft_p99_ms == 500.0
        assert second.spec.sla.ttft_p99_ms == 300.0
        assert second.spec.config_hash != first.spec.config_hash


async def test_a_new_pod_does_not_wait_for_the_interval() -> None:
    """It starts from the initial limits."""
    watched = FakeWatched(raw=a_live_service(tuning={"interval": "60s"}))
    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()

        watched.raw_pods = [_a_raw_pod(), _a_raw_pod("quick-2", ip="fd00::7")]
        world.tuning.follow(_KEY)
        target = await world.tuner.next()

        assert [pod.admin_url for pod in target.pods] == [
            "http://10.88.0.7:8001",
            "http://[fd00::7]:8001",
        ]


async def test_nothing_new_is_no_reason_to_hurry() -> None:
    """Status writes come back as events of the service itself."""
    async with a_world(
        watched=FakeWatched(raw=a_live_service(tuning={"interval": "60s"}))
    ) as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()
        await asyncio.wait_for(world.concluded.get(), _WITHIN_S)

        for _ in range(10):
            world.tuning.follow(_KEY)
            await asyncio.sleep(0)

        assert world.tuner.targets.empty()


async def test_pods_that_cannot_answer_are_left_out() -> None:
    """Not ready yet, or without an address."""
    watched = FakeWatched(raw_pods=[_a_raw_pod(is_ready=False), _a_raw_pod("other", ip="")])
    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)

        assert (await world.tuner.next()).pods == ()


async def test_who_stands_by_does_not_tune() -> None:
    """Two writers of limits would fight."""
    async with a_world(leads=False) as world:
        world.tuning.follow(_KEY)
        for _ in range(10):
            await asyncio.sleep(0)
        assert world.tuner.targets.empty()

        await world.leader.try_once()

        assert (await world.tuner.next()).key == _KEY


async def test_who_takes_over_tunes_all_services_at_once() -> None:
    """Before any of them has been reconciled: with a thousand, that takes a while."""
    async with a_world(leads=False) as world:
        await world.leader.try_once()

        assert (await world.tuner.next()).key == _KEY


async def test_a_round_that_fails_is_not_the_last() -> None:
    """A bug in one round is counted and logged; tuning goes on."""
    watched = FakeWatched(raw=a_live_service(tuning={"interval": "60s"}))
    async with a_world(watched=watched, tuner=FakeTuner(failures=1)) as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()
        watched.raw = replace_interval(watched.raw)
        world.tuning.follow(_KEY)

        await world.tuner.next()

        assert await asyncio.wait_for(world.concluded.get(), _WITHIN_S) == _KEY
        errors = world.tuning.metrics.tuning_rounds.labels("error")
        assert errors._value.get() == 1


def replace_interval(raw: Manifest | None) -> Manifest:
    assert raw is not None
    return raw | {"spec": raw["spec"] | {"tuning": {"interval": "59s"}}}


async def test_a_service_that_is_gone_is_forgotten() -> None:
    """And what the tuner remembers of it."""
    async with a_world() as world:
        world.tuning.follow(_KEY)
        await asyncio.wait_for(world.concluded.get(), _WITHIN_S)

        world.tuning.forget(_KEY)

        assert world.tuning.reports == {}
        assert world.tuner.forgotten == [_KEY]
        assert replace(await world.tuner.next(), pods=()).key == _KEY


async def test_a_service_deleted_and_made_again_in_one_breath_is_tuned_again() -> None:
    """Nobody had said that it was gone, but who looked while it was."""
    watched = FakeWatched(raw=a_live_service(tuning={"interval": "60s"}))
    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()
        raw, watched.raw = watched.raw, None
        world.tuning.follow(_KEY)
        assert world.tuning.untuned() == []

        watched.raw = raw
        assert world.tuning.untuned() == [_KEY]
        world.tuning.follow(_KEY)

        assert (await world.tuner.next()).key == _KEY
        assert world.tuning.untuned() == []


async def test_rounds_that_ended_by_a_bug_begin_again() -> None:
    """The alert on untuned services tells of them until then."""
    async with a_world() as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()
        assert isinstance(world.tuning.tuner, Rounds)
        task = world.tuning.tuner._followed[_KEY].task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert world.tuning.untuned() == [_KEY]

        world.tuning.follow(_KEY)

        assert (await world.tuner.next()).key == _KEY
        assert world.tuning.untuned() == []


async def test_a_new_term_begins_with_the_targets_of_now() -> None:
    """While another led, a spec may have changed: what was declared before is not sent again."""
    watched = FakeWatched(raw=a_live_service(tuning={"interval": "1s"}))
    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()
        world.clock.advance(60)
        watched.raw = a_live_service(tuning={"interval": "1s"}, sla={"ttft": {"p99": "300ms"}})
        await world.leader.try_once()

        assert (await world.tuner.next()).spec.sla.ttft_p99_ms == 300.0


async def test_a_report_that_was_on_its_way_is_of_no_service_that_is_gone() -> None:
    """Nor of another one under the same name."""
    async with a_world() as world:
        world.tuning.follow(_KEY)
        await asyncio.wait_for(world.concluded.get(), _WITHIN_S)

        world.tuning.concluded("another uid", a_report(key=_KEY, at=7.0))
        assert world.tuning.reports[_KEY].at != 7.0
        world.tuning.forget(_KEY)
        world.tuning.concluded("uid-quick", a_report(key=_KEY))

        assert world.tuning.reports == {}


async def test_a_service_of_the_same_name_starts_anew() -> None:
    """Its pods are others, and what was learned of the one before says nothing of it."""
    watched = FakeWatched(raw=a_live_service(tuning={"interval": "60s"}))
    async with a_world(watched=watched) as world:
        world.tuning.follow(_KEY)
        await world.tuner.next()
        assert watched.raw is not None
        again = watched.raw["metadata"] | {"uid": "another"}
        watched.raw = watched.raw | {"metadata": again}

        world.tuning.follow(_KEY)

        assert (await world.tuner.next()).key == _KEY
        assert world.tuner.forgotten == [_KEY]


async def test_a_service_that_nobody_follows_is_untuned_until_it_goes() -> None:
    """What the alert on untuned services counts."""
    watched = FakeWatched()
    async with a_world(watched=watched) as world:
        assert world.tuning.untuned() == [_KEY]

        assert watched.raw is not None
        going = watched.raw["metadata"] | {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        watched.raw = watched.raw | {"metadata": going}

        assert world.tuning.untuned() == []


@pytest.mark.parametrize("began", [0.0, 3.3, 1234.5, 99_999.9])
def test_rounds_that_began_together_do_not_stay_together(began: float) -> None:
    """A thousand services start with the operator; soon their rounds lie evenly in the interval."""
    services = [f"uid-{number}" for number in range(1000)]

    first = [next_round(uid, began, 5.0) for uid in services]
    second = [next_round(uid, at, 5.0) for uid, at in zip(services, first, strict=True)]

    assert all(2.5 <= at - began < 7.5 for at in first)
    steps = [later - at for at, later in zip(first, second, strict=True)]
    assert steps == pytest.approx([5.0] * 1000)
    for tenth in range(10):
        here = sum(tenth / 2 <= (at % 5.0) < (tenth + 1) / 2 for at in first)
        assert 60 <= here <= 140


@dataclass
class BusyTuner(FakeTuner):
    """Reads pods at once, and is long busy with each answer."""

    num_running: int = 0
    most: int = 0

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        for _ in range(3):
            await asyncio.sleep(0)
            time.sleep(0.06)  # noqa: ASYNC251 - it is what keeps the loop busy
        self.num_running -= 1
        return await super().tick(target)


async def test_a_process_that_has_too_much_to_do_is_late_and_loses_no_answers() -> None:
    """Who had asked all pods at once would read the last answer after its time is up."""
    tuner = BusyTuner()
    tuning = a_tuning(FakeWatched(), tuner, Metrics(), ManualClock())
    tuning.tuner.grant(0, math.inf)
    for number in range(20):
        spec = TuningSpec(SLA(ttft_p99_ms=500.0), interval_s=60.0)
        tuning.tuner.follow(f"uid-{number}", ServiceTarget(f"ns/{number}", spec, ()))

    for _ in range(20):
        await tuner.next()

    assert tuner.most <= 3
    assert isinstance(tuning.tuner, Rounds)
    await tuning.tuner.stop()
