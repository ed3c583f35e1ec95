"""One tick over several pods: each is on its own, and none can spoil the others."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_testing.simulated import LAPTOP_LIMITS, a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodClient, PodRefusedError, TokenRefusedError
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_wire.limits import Limits

SPEC = TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash="one")


class Pods:
    """PodClient that sends each call to the pod of that name."""

    def __init__(self, **pods: PodClient) -> None:
        self.pods = pods
        self.told: list[str] = []

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        return await self.pods[pod.name].get_telemetry(pod, since)

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        self.told.append(pod.name)
        return await self.pods[pod.name].patch_limits(pod, body)


class Deaf(SimPod):
    """A pod that tells but does not listen."""

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        raise PodRefusedError(pod.name, 409, f"epoch {body['epoch']} is old")


class RefusesRaises(SimPod):
    """A pod that takes every change but one that raises a limit."""

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        held, wanted = self.engine.limits, dict[str, Any](body)
        is_raise = (
            wanted.get("max_batch_size", 0) > held.max_batch_size
            or wanted.get("token_budget", 0) > held.token_budget
            or (wanted.get("step_target_ms") or 0.0) > (held.step_target_ms or math.inf)
        )
        if is_raise:
            raise PodRefusedError(pod.name, 409, "not now")
        return await super().patch_limits(pod, body)


class Unlearned(SimPod):
    """A pod whose step model is never good enough to decide from."""

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        telemetry = await super().get_telemetry(pod, since)
        assert telemetry.model is not None
        model = msgspec.structs.replace(telemetry.model, valid=False)
        return msgspec.structs.replace(telemetry, model=model)


class Strange(SimPod):
    """A pod that knows another token, until it learns ours."""

    knows_us = False

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        if not self.knows_us:
            raise TokenRefusedError(pod.name, 401, "The key is not known.")
        return await super().get_telemetry(pod, since)


def a_target(*names: str, spec: TuningSpec = SPEC, replicas: int | None = None) -> ServiceTarget:
    pods = tuple(PodTarget(name, f"http://{name}", "token") for name in names)
    return ServiceTarget("ns/name", spec, pods, replicas=replicas)


def a_pod(
    seed: int = 1,
    *,
    rate: float = 0.8,
    limits: Limits = LAPTOP_LIMITS,
    kind: Callable[[SimulatedEngine], SimPod] = SimPod,
) -> SimPod:
    return kind(a_laptop(clients(rate, seed=seed), limits=limits, seed=seed))


async def ticks(
    loop: TuningLoop, target: ServiceTarget, pods: list[SimPod], count: int
) -> ServiceReport:
    reports = []
    for _ in range(count):
        for pod in pods:
            pod.run_until(pod.engine.now + 5)
        reports.append(await loop.tick(target))
    return reports[-1]


async def test_a_pod_that_is_down_does_not_stop_the_others() -> None:
    """The report names it, and the others are tuned."""
    good, bad = a_pod(1), a_pod(2)
    bad.is_down = True
    loop = TuningLoop(Pods(good=good, bad=bad), lambda: 0.0)

    report = await ticks(loop, a_target("good", "bad"), [good, bad], 12)

    by_name = {pod.name: pod for pod in report.pods}
    assert by_name["good"].error == ""
    assert by_name["good"].token_budget is not None
    assert by_name["good"].token_budget < 512
    assert "no answer" in by_name["bad"].error
    assert not report.acknowledged


async def test_pods_are_read_at_the_same_time() -> None:
    """A slow pod costs its own time only: both calls are under way before either ends."""
    both_asked = asyncio.Event()
    asked: list[str] = []

    class Slow(SimPod):
        async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
            asked.append(pod.name)
            if len(asked) == 2:
                both_asked.set()
            await asyncio.wait_for(both_asked.wait(), timeout=60)
            return await super().get_telemetry(pod, since)

    one, two = (a_pod(seed, kind=Slow) for seed in (1, 2))
    loop = TuningLoop(Pods(one=one, two=two), lambda: 0.0)

    report = await ticks(loop, a_target("one", "two"), [one, two], 1)

    assert [pod.error for pod in report.pods] == ["", ""]


async def test_a_change_that_did_not_arrive_is_not_reported() -> None:
    """History tells what happened, and the next tick tries again."""
    deaf = a_pod(kind=Deaf)
    loop = TuningLoop(Pods(deaf=deaf), lambda: 0.0)

    report = await ticks(loop, a_target("deaf"), [deaf], 12)

    assert report.history == ()
    assert report.pods[0].batch_size == 64
    assert "409" in report.pods[0].error
    decision = loop.explain("ns/name", "deaf")[-1]
    assert decision.chosen != decision.current


async def test_a_raise_that_did_not_arrive_leaves_the_audit_as_it_was() -> None:
    """The limits are the same, so the requests that were counted under them still count."""
    pod = a_pod(rate=1.2, limits=Limits(16, 256, 250.0), kind=RefusesRaises)
    loop = TuningLoop(Pods(pod=pod), lambda: pod.engine.now)

    await ticks(loop, a_target("pod"), [pod], 1)
    (decision,) = loop.explain("ns/name", "pod")
    first = decision.acknowledged_state.audit
    await ticks(loop, a_target("pod"), [pod], 23)

    decisions = loop.explain("ns/name", "pod")
    last = decisions[-1].acknowledged_state.audit
    assert all(d.chosen is not None and d.chosen.batch_size > 16 for d in decisions[-6:])
    assert last.since == first.since
    assert last.requests > 50


async def test_a_blind_tuner_renews_the_lease_when_told_to_hold() -> None:
    """Only `Hold` keeps tuned limits alive; the other policy lets the lease lapse."""
    for policy, renewals in (("Hold", 1), ("RevertToCertified", 0)):
        pod = a_pod()
        spec = replace(SPEC, on_telemetry_loss=policy)  # type: ignore[arg-type]  # a literal of two
        loop = TuningLoop(Pods(pod=pod), lambda: 0.0)
        await ticks(loop, a_target("pod", spec=spec), [pod], 6)
        pod.is_blind, seen = True, len(pod.bodies)

        await ticks(loop, a_target("pod", spec=spec), [pod], 1)

        assert len(pod.bodies) - seen == renewals


async def test_the_lease_is_renewed_long_before_it_ends() -> None:
    """Sixty seconds without a word and the engine falls back; a word each tick is not needed."""
    pod = a_pod()
    loop = TuningLoop(Pods(pod=pod), lambda: 0.0)

    left = []
    for _ in range(40):
        await ticks(loop, a_target("pod"), [pod], 1)
        left.append((await pod.get_telemetry(PodTarget("pod", "", ""), 0)).limits)

    assert min((limits and limits.lease_expires_s) or 0.0 for limits in left) >= 35.0
    assert all(body["lease_s"] == 60.0 for body in pod.bodies)
    assert len(pod.bodies) < 20


async def test_no_limits_go_where_another_pods_engine_answers() -> None:
    """An address may lead elsewhere for a while; who has the engine is tuned on by its own name."""
    own, other = a_pod(1), a_pod(2)
    pods = Pods(own=own, other=other)
    loop, target = TuningLoop(pods, lambda: 0.0), a_target("own", "other")
    await ticks(loop, target, [own, other], 3)
    pods.told.clear()
    pods.pods["other"] = own

    report = await ticks(loop, target, [own, other], 20)

    assert pods.told
    assert set(pods.told) == {"own"}
    assert [pod.error for pod in report.pods] == ["", "the pod answers with the engine of own"]
    pods.pods["other"] = other
    mended = await ticks(loop, target, [own, other], 2)
    assert [pod.error for pod in mended.pods] == ["", ""]


async def test_no_limits_go_where_another_pod_answers_by_its_name() -> None:
    """Whoever is asked first after a restart: the pod whose name it is keeps its engine."""

    class Named(SimPod):
        name = ""

        async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
            return msgspec.structs.replace(await super().get_telemetry(pod, since), pod=self.name)

    own = a_pod(1, kind=Named)
    own.name = "own"  # type: ignore[attr-defined] # of Named
    pods = Pods(own=own, other=own)
    loop = TuningLoop(pods, lambda: 0.0)

    report = await ticks(loop, a_target("other", "own"), [own], 20)

    assert set(pods.told) == {"own"}
    assert [pod.error for pod in report.pods] == ["the pod answers as own", ""]


async def test_a_pod_that_rests_is_not_decided_on_again() -> None:
    """Nothing new is no ground for another decision; its lease is renewed all the same."""
    pod = a_pod(rate=0.0)
    loop = TuningLoop(Pods(pod=pod), lambda: 0.0)
    await ticks(loop, a_target("pod"), [pod], 30)
    before, renewed = len(loop.explain("ns/name", "pod")), len(pod.bodies)

    report = await ticks(loop, a_target("pod"), [pod], 30)

    assert len(loop.explain("ns/name", "pod")) == before
    assert len(pod.bodies) > renewed
    assert report.pods[0].verdict == "Idle"
    assert report.pods[0].error == ""


async def test_capacity_adds_up_over_pods() -> None:
    """The service can serve what its pods can."""
    pods = [a_pod(seed) for seed in (1, 2)]
    loop = TuningLoop(Pods(one=pods[0], two=pods[1]), lambda: 0.0)

    report = await ticks(loop, a_target("one", "two"), pods, 12)

    parts = [pod.capacity_rps for pod in report.pods]
    assert all(part is not None for part in parts)
    assert report.capacity_rps == sum(part for part in parts if part is not None)
    assert report.utilization is not None
    assert report.recommended_replicas is not None
    assert report.acknowledged


async def test_a_pod_that_is_silent_or_new_does_not_hide_the_load() -> None:
    """An autoscaler follows the utilization: it must not vanish while one more pod starts."""
    pods = [a_pod(seed) for seed in (1, 2)]
    loop = TuningLoop(Pods(one=pods[0], two=pods[1]), lambda: 0.0)
    before = await ticks(loop, a_target("one", "two"), pods, 12)
    new, pods[1].is_down = a_pod(rate=0.0), True
    loop = TuningLoop(Pods(one=pods[0], two=pods[1], new=new), lambda: 0.0)

    after = await ticks(loop, a_target("one", "two", "new"), [*pods, new], 12)

    known = after.pods[0].capacity_rps
    assert [pod.capacity_rps is None for pod in after.pods] == [False, True, True]
    assert known is not None
    assert after.capacity_rps == 2 * known
    assert after.utilization == after.pods[0].arrival_rps / (2 * known)
    assert before.utilization is not None


async def recommended(
    pods: list[SimPod], *, replicas: int | None, seconds: int
) -> list[int | None]:
    """What a loop that has just begun recommends at each tick."""
    names = [f"pod-{number}" for number in range(len(pods))]
    loop = TuningLoop(Pods(**dict(zip(names, pods, strict=True))), lambda: pods[0].engine.now)
    target = a_target(*names, replicas=replicas)
    return [(await ticks(loop, target, pods, 1)).recommended_replicas for _ in range(seconds // 5)]


async def test_a_service_that_nobody_asks_needs_one_pod_once_a_minute_has_shown_it() -> None:
    """λ* is not known, and need not be: until then as many as there are, those that start too."""
    pods = [a_pod(rate=0.0), a_pod(rate=0.0)]

    found = await recommended(pods, replicas=3, seconds=120)

    assert found == [3] * 12 + [1] * 12


async def test_a_fresh_service_of_one_pod_needs_that_pod_from_the_first_tick_on() -> None:
    """An autoscaler that finds no number may ask for more pods, as KEDA's fallback does."""
    assert set(await recommended([a_pod(rate=0.0)], replicas=1, seconds=120)) == {1}


async def test_an_operator_that_starts_anew_recommends_no_fewer_pods_under_load() -> None:
    """Its memory is lost, and what the pods tell shows the load at once."""
    pods = [a_pod(seed, rate=0.8) for seed in (1, 2, 3)]
    for pod in pods:
        pod.run_until(300.0)
    before = [number for number in await recommended(pods, replicas=3, seconds=60) if number]

    anew = await recommended(pods, replicas=3, seconds=60)

    assert before
    assert None not in anew
    assert min(number for number in anew if number) >= min(before)


async def test_a_loaded_service_without_a_step_model_recommends_nothing() -> None:
    """Requests run and λ* is not known: nobody can say how many pods they need."""
    pods = [a_pod(rate=0.0), a_pod(rate=0.8, kind=Unlearned)]

    assert set(await recommended(pods, replicas=2, seconds=90)) == {None}


async def test_a_silent_pod_may_be_the_one_that_is_loaded() -> None:
    """One that gives no telemetry hides what it serves, so nothing is recommended."""
    pods = [a_pod(rate=0.0), a_pod(rate=0.0)]
    pods[1].is_down = True

    assert set(await recommended(pods, replicas=2, seconds=120)) == {None}


async def test_pods_that_return_after_an_outage_are_not_taken_for_idle_at_once() -> None:
    """Their engines are new and empty, and the clients are not back yet: all of them stay."""
    pods = [a_pod(rate=0.8), a_pod(rate=0.8)]
    there = Pods(one=pods[0], two=pods[1])
    now = 0.0
    loop = TuningLoop(there, lambda: now)
    for _ in range(24):
        now += 5
        for pod in pods:
            pod.run_until(now)
        await loop.tick(a_target("one", "two", replicas=2))
    now += 200.0
    back = [a_pod(rate=0.0), a_pod(rate=0.0)]
    there.pods.update(new=back[0], newer=back[1])

    found = []
    for _ in range(12):
        now += 5
        for pod in back:
            pod.run_until(pod.engine.now + 5)
        report = await loop.tick(a_target("new", "newer", replicas=2))
        found.append(report.recommended_replicas)

    assert found == [2] * 12


async def test_a_service_at_zero_is_recommended_nothing() -> None:
    """What wakes it knows of requests that no pod has seen."""
    report = await TuningLoop(Pods(), lambda: 0.0).tick(a_target(replicas=0))

    assert report.recommended_replicas is None


async def test_no_pods_is_no_news() -> None:
    """A service that is still starting is neither met nor missed."""
    report = await TuningLoop(Pods(), lambda: 0.0).tick(a_target())

    statuses = {condition.type: condition.status for condition in report.conditions}
    assert statuses["SLAMet"] == "Unknown"
    assert statuses["TelemetryAvailable"] == "Unknown"
    assert not report.acknowledged


async def test_a_service_that_is_gone_is_forgotten() -> None:
    """Memory is bounded by what is served."""
    pod = a_pod()
    loop = TuningLoop(Pods(pod=pod), lambda: 0.0)
    await ticks(loop, a_target("pod"), [pod], 2)

    loop.forget("ns/name")

    assert loop.explain("ns/name", "pod") == []


async def test_a_refused_token_is_told_apart_and_forgotten_once_it_is_known() -> None:
    """It needs a person, unlike a pod that does not answer."""
    pod = a_pod(kind=Strange)
    assert isinstance(pod, Strange)
    loop = TuningLoop(Pods(one=pod), lambda: 1000.0)

    refused = await loop.tick(a_target("one"))
    pod.knows_us = True
    known = await loop.tick(a_target("one"))

    reasons = [
        next(c.reason for c in report.conditions if c.type == "TelemetryAvailable")
        for report in (refused, known)
    ]
    assert [report.pods[0].refuses_token for report in (refused, known)] == [True, False]
    assert reasons[0] == "TokenRefused" != reasons[1]
