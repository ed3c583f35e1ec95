"""A pod that comes later begins where one of its kind has ended. Real pacer, moved clock."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from paceline_sim.hardware import Disturbance
from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodUnreachableError
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_store import StoreError
from paceline_wire.limits import Limits

pytestmark = pytest.mark.slow

PERIOD_S = 5.0
SPEC = TuningSpec(sla=SLA(tpot_p99_ms=150.0), config_hash="one")


@dataclass
class Shelf:
    """A store that counts, and can be out of reach."""

    warm_start: WarmStart = field(default_factory=WarmStart)
    is_reachable: bool = True
    saved: list[WarmStart] = field(default_factory=list)

    async def load(self) -> WarmStart:
        if not self.is_reachable:
            raise StoreError("unreachable")
        return self.warm_start

    async def save(self, warm_start: WarmStart) -> None:
        if not self.is_reachable:
            raise StoreError("unreachable")
        self.warm_start = warm_start
        self.saved.append(warm_start)


@dataclass
class TunedPod:
    """One loop over one service of one pod."""

    pod: SimPod
    shelf: Shelf | None
    spec: TuningSpec = SPEC
    at: float = 1e9

    def __post_init__(self) -> None:
        self.loop = TuningLoop(self.pod, lambda: self.at, self.shelf)

    async def run(self, seconds: float) -> None:
        for _ in range(int(seconds / PERIOD_S)):
            self.at += PERIOD_S
            self.pod.run_until(self.pod.engine.now + PERIOD_S)
            pods = (PodTarget("pod", "http://pod", "token"),)
            await self.loop.tick(ServiceTarget("ns/name", self.spec, pods))

    @property
    def origin(self) -> str:
        """What the engine's step model comes from."""
        pacer = self.pod.engine.pacer
        assert pacer is not None
        return pacer.info().origin

    @property
    def limits(self) -> Limits:
        return self.pod.engine.limits


def a_pod(
    seed: int,
    *,
    rate: float = 5.0,
    start_s: float = 0.0,
    disturbances: tuple[Disturbance, ...] = (),
    kind: type[SimPod] = SimPod,
    instance: str = "a",
    engine_version: str = "1",
) -> SimPod:
    """Far more than the laptop can serve at once under 150 ms a token."""
    requests = clients(rate, prompt=(8, 16), output=(32, 64), start_s=start_s, seed=seed)
    engine = a_laptop(requests, seed=seed, shed_ttft_ms=5000.0, disturbances=disturbances)
    return kind(engine, instance=instance, engine_version=engine_version)


def a_fresh_pod(
    *, kind: type[SimPod] = SimPod, instance: str = "a", engine_version: str = "1"
) -> SimPod:
    """A pod that nobody has asked anything yet."""
    return a_pod(7, rate=0.0, kind=kind, instance=instance, engine_version=engine_version)


async def a_warm_start(seed: int = 1) -> Shelf:
    """What five minutes under load leave behind."""
    shelf = Shelf()
    trial = TunedPod(a_pod(seed, rate=2.5), shelf)
    await trial.run(300)
    return shelf


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_second_pod_is_near_its_final_limits_at_its_first_decision(seed: int) -> None:
    """Before its first step: nobody has to suffer for what is known."""
    shelf = await a_warm_start(seed)
    second = TunedPod(a_pod(seed + 10, rate=2.5, start_s=6.0), shelf)

    await second.run(PERIOD_S)
    first, origin = second.limits, second.origin
    decision = second.loop.explain("ns/name", "pod")[-1]
    await second.run(300)

    assert origin == "seed"
    assert decision.binding == "Remembered"
    assert decision.reason.startswith("remembered")
    assert decision.change is not None
    assert first.max_batch_size == pytest.approx(second.limits.max_batch_size, rel=0.1)
    # The budget is a fence beyond what steps reach, set once by the pod's own first fit: it is
    # begun with 90 % of what another first fit said.
    assert first.token_budget == pytest.approx(second.limits.token_budget, rel=0.5)


async def test_limits_that_are_kept_are_written_once_a_minute_at_most() -> None:
    """An API server is no scratch pad: what has not changed is not written."""
    shelf = await a_warm_start()

    (entry,) = shelf.warm_start.entries
    assert 1 <= len(shelf.saved) <= 3
    assert entry.sla == SPEC.sla
    assert entry.key.model == "CPU_135M"
    assert 4 <= entry.batch_size < 40


async def test_what_another_loop_found_out_is_started_from_and_not_written_again() -> None:
    """It stands in the store already."""
    known = (await a_warm_start()).warm_start
    shelf = Shelf()
    other = TunedPod(a_fresh_pod(), shelf)
    other.loop.learn(known)
    shelf.warm_start = known

    await other.run(PERIOD_S)
    origin = other.origin
    await other.run(120)

    assert origin == "seed"
    assert shelf.saved == []


@pytest.mark.parametrize("version", ["2", ""], ids=["another", "unknown"])
async def test_a_pod_of_another_kind_is_not_touched(version: str) -> None:
    """Step times of one engine say nothing of the next version."""
    shelf = await a_warm_start()
    other = TunedPod(a_fresh_pod(engine_version=version), shelf)

    await other.run(PERIOD_S)

    assert (other.limits.max_batch_size, other.limits.token_budget) == (64, 2048)
    assert other.origin == "prior"
    assert "coefficients" not in other.pod.bodies[-1]


@pytest.mark.parametrize(
    "sla",
    [SLA(tpot_p99_ms=100.0), SLA(tpot_p99_ms=150.0, ttft_p99_ms=500.0), SLA(itl_p99_ms=300.0)],
    ids=["tighter", "one more target", "another target"],
)
async def test_an_sla_that_was_never_kept_gets_the_step_model_alone(sla: SLA) -> None:
    """How long steps take depends on no promise; which limits keep it does."""
    shelf = await a_warm_start()
    other = TunedPod(a_fresh_pod(), shelf, replace(SPEC, sla=sla))

    await other.run(PERIOD_S)

    assert other.origin == "seed"
    assert (other.limits.max_batch_size, other.limits.token_budget) == (64, 2048)


@pytest.mark.parametrize("change", [{"mode": "Observe"}, {"mode": "Fixed"}, {"paused": True}])
async def test_only_what_the_tuner_may_change_is_started(change: dict[str, object]) -> None:
    """A warm start is no reason to touch limits that are the user's."""
    shelf = await a_warm_start()
    other = TunedPod(a_fresh_pod(), shelf, replace(SPEC, **change))  # type: ignore[arg-type]  # as a_pod

    await other.run(PERIOD_S)

    assert other.origin == "prior"
    assert (other.limits.max_batch_size, other.limits.token_budget) == (64, 2048)


async def test_a_start_that_did_not_arrive_is_tried_again() -> None:
    """A pod that refuses once must not be left with its defaults."""
    shelf = await a_warm_start()

    class Hesitant(SimPod):
        refusals = 1

        async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
            if self.refusals:
                self.refusals -= 1
                raise PodUnreachableError("no answer")
            return await super().patch_limits(pod, body)

    other = TunedPod(a_fresh_pod(kind=Hesitant), shelf)
    await other.run(PERIOD_S)
    assert other.origin == "prior"

    await other.run(PERIOD_S)

    assert other.origin == "seed"
    assert other.limits.max_batch_size < 64


async def test_a_raise_that_did_not_arrive_leaves_the_start_on_trial() -> None:
    """The remembered limits still hold: it is not known yet what they are worth here."""
    shelf = await a_warm_start()

    class Stubborn(SimPod):
        """Takes what it starts with, and no change after it."""

        async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
            if "max_batch_size" in body and "coefficients" not in body:
                raise PodUnreachableError("no answer")
            return await super().patch_limits(pod, body)

    other = TunedPod(a_pod(11, rate=2.5, start_s=6.0, kind=Stubborn), shelf)
    await other.run(PERIOD_S)
    (start,) = other.loop.explain("ns/name", "pod")
    await other.run(PERIOD_S)

    *_, refused = other.loop.explain("ns/name", "pod")
    assert start.start is not None
    assert start.acknowledged_state.started == start.start.limits
    assert refused.chosen != refused.current
    assert refused.acknowledged_state.started == start.start.limits


async def test_a_start_is_made_once() -> None:
    """Later ticks renew the lease: an idle engine is not started over and over."""
    shelf = await a_warm_start()
    other = TunedPod(a_fresh_pod(), shelf)

    await other.run(30)

    assert sum("coefficients" in body for body in other.pod.bodies) == 1


async def test_limits_that_fail_a_new_pod_are_not_tried_on_the_next() -> None:
    """The same key on a slower machine: the pair is set aside for a day, the model is kept."""
    shelf = await a_warm_start()
    slower = Disturbance(PERIOD_S, math.inf, 1.9)
    slow = TunedPod(a_pod(3, start_s=PERIOD_S, disturbances=(slower,)), shelf)
    await slow.run(PERIOD_S)
    await slow.run(60)
    slow.at += 60
    await slow.run(PERIOD_S)

    third = TunedPod(a_fresh_pod(), Shelf(shelf.warm_start), at=slow.at)
    await third.run(PERIOD_S)
    much_later = TunedPod(a_fresh_pod(), Shelf(shelf.warm_start), at=slow.at + 90_000)
    await much_later.run(PERIOD_S)

    assert any(d.failed_start is not None for d in slow.loop.explain("ns/name", "pod"))
    assert third.origin == "seed"
    assert third.limits.max_batch_size == 64
    assert much_later.limits.max_batch_size < 64


async def test_a_store_out_of_reach_stops_nothing_and_is_written_later() -> None:
    """Tuning goes on without a store, and nothing that was there is lost by it."""
    known = await a_warm_start()
    shelf = Shelf(known.warm_start, is_reachable=False)
    trial = TunedPod(a_pod(2, rate=2.5), shelf, replace(SPEC, sla=SLA(tpot_p99_ms=200.0)))

    await trial.run(240)
    assert trial.limits.max_batch_size < 64
    assert shelf.saved == []
    shelf.is_reachable = True
    await trial.run(90)

    assert shelf.saved
    assert {entry.sla for entry in shelf.warm_start.entries} >= {SPEC.sla, trial.spec.sla}


async def test_what_another_process_has_written_is_kept() -> None:
    """Two operators in turn, or two `paceline up`, share one warm start."""
    shelf = Shelf()
    trial = TunedPod(a_pod(1, rate=2.5), shelf)
    await trial.run(30)
    other = await a_warm_start(2)
    shelf.warm_start = WarmStart(
        tuple(replace(e, key=replace(e.key, device="cuda:other")) for e in other.warm_start.entries)
    )

    await trial.run(300)

    assert {entry.key.device for entry in shelf.warm_start.entries} == {"cpu", "cuda:other"}


async def test_without_a_store_nothing_is_remembered() -> None:
    """The loop as it was: each pod finds out by itself."""
    trial = TunedPod(a_pod(1, rate=2.5), None)
    await trial.run(300)
    trial.pod = trial.loop._pods = a_fresh_pod(instance="b")

    await trial.run(PERIOD_S)

    assert trial.origin == "prior"


async def test_a_store_that_hangs_delays_no_round() -> None:
    """Limits are leased for a minute, and a write may take as long as that."""

    class Hanging(Shelf):
        async def save(self, warm_start: WarmStart) -> None:
            self.saved.append(warm_start)
            await asyncio.Event().wait()

    shelf = Hanging()
    trial = TunedPod(a_pod(1, rate=2.5), shelf)

    async with asyncio.timeout(300):  # far more than it takes
        await trial.run(300)

    assert len(shelf.saved) == 1
    assert trial.limits.max_batch_size < 64
