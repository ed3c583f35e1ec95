"""The whole loop under a TPOT target: with an engine that paces requests, and one that cannot."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec import UNSET, structs

from paceline_sim.gaps import gap_quantile_ms
from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK, SLICE_S
from paceline_testing.simulated import a_gpu, a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodRefusedError
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry

pytestmark = pytest.mark.slow

PERIOD_S = 5.0
WARM_UP_S = 30.0
POD = PodTarget("pod", "http://pod", "token")


@dataclass(frozen=True)
class Outcome:
    """What came of the clients after the warm-up."""

    served: int
    """Output tokens, all."""
    slow: float
    """Share of requests over the target."""
    longest_gap_ms: float
    is_paced: bool
    """Each request is paced by its slack at the end."""


class OldPod(SimPod):
    """A pod whose engine cannot pace each request."""

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        telemetry = await super().get_telemetry(pod, since)
        assert telemetry.limits is not None
        return structs.replace(telemetry, limits=_without_pace(telemetry.limits))

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        if "pace_tpot_ms" in body:
            raise PodRefusedError(pod.name, 422, "pace_tpot_ms: unknown field")
        return _without_pace(await super().patch_limits(pod, body))


def _without_pace(answer: LimitsAnswer) -> LimitsAnswer:
    requested, effective, certified = (
        structs.replace(limits, pace_tpot_ms=UNSET)
        for limits in (answer.requested, answer.effective, answer.certified)
    )
    return structs.replace(answer, requested=requested, effective=effective, certified=certified)


async def outcome(
    engine: SimulatedEngine, sla: SLA, *, seconds: float, knows_slack: bool
) -> Outcome:
    """Tune and serve; the first half minute is warm-up."""
    pod = SimPod(engine) if knows_slack else OldPod(engine)
    loop = TuningLoop(pod, lambda: engine.now)
    target = ServiceTarget("ns/name", TuningSpec(sla=sla, config_hash="one"), (POD,))
    while engine.now < seconds:
        pod.run_until(engine.now + PERIOD_S)
        report = await loop.tick(target)
        assert report.pods[0].error == ""
    jobs = engine.jobs
    means_ms = engine.tpot_ms[(jobs["arrival_s"] > WARM_UP_S) & (jobs["outcome"] == OK)]
    assert sla.tpot_p99_ms is not None
    return Outcome(
        served=int(engine.totals[0]["output_tokens"]),
        slow=float((means_ms > sla.tpot_p99_ms).mean()),
        longest_gap_ms=gap_quantile_ms(engine.gap_counts[int(WARM_UP_S / SLICE_S) :], 0.99),
        is_paced=engine.limits.pace_tpot_ms is not None,
    )


def gpu_clients(rate: float) -> Requests:
    return clients(rate, prompt=(300, 3000), output=(50, 300), seed=7)


@pytest.mark.parametrize("rate", [0.6, 1.0], ids=["light", "overload"])
async def test_a_laptop_serves_no_less_and_its_requests_keep_their_mean(rate: float) -> None:
    """What requests have gained goes to prompts, and is theirs again before they end."""
    sla = SLA(tpot_p99_ms=150.0)

    paced = await outcome(a_laptop(clients(rate, seed=7)), sla, seconds=300, knows_slack=True)
    stepped = await outcome(a_laptop(clients(rate, seed=7)), sla, seconds=300, knows_slack=False)

    assert paced.is_paced
    assert not stepped.is_paced
    assert paced.served >= 0.99 * stepped.served
    assert paced.slow <= 0.01


@pytest.mark.parametrize(
    ("target_ms", "rate"), [(50.0, 13), (25.0, 14)], ids=["loose-light", "tight-overload"]
)
async def test_a_gpu_keeps_the_step_target_and_with_it_the_mean(
    target_ms: float, rate: float
) -> None:
    """Long steps would let more sequences run at once there, whose contexts every step reads."""
    sla = SLA(tpot_p99_ms=target_ms)

    found = await outcome(a_gpu(gpu_clients(rate)), sla, seconds=120, knows_slack=True)

    assert not found.is_paced
    assert found.slow <= 0.01
    assert found.longest_gap_ms <= 1.25 * target_ms


async def test_a_declared_gap_keeps_the_hard_step_target() -> None:
    """A request's mean must not be kept at the cost of its gaps where both are promised."""
    sla = SLA(tpot_p99_ms=50.0, itl_p99_ms=50.0)

    both = await outcome(a_gpu(gpu_clients(12)), sla, seconds=90, knows_slack=True)

    assert not both.is_paced
    assert both.longest_gap_ms <= 50.0
    assert both.slow <= 0.01
