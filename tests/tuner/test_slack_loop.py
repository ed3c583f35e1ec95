"""The whole loop under a TPOT target: with an engine that paces requests, and one that cannot."""

import random
from dataclasses import dataclass

import pytest

from paceline_testing.plant import Plant, gpu, laptop
from paceline_testing.plant_pod import PlantPod
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_wire.limits import Capacity, Limits

PERIOD_S = 5.0
POD = PodTarget("pod", "http://pod", "token")


@dataclass(frozen=True)
class Outcome:
    """What came of the clients after the warm-up."""

    served: int
    """Output tokens, all."""
    slow: float
    """Share of requests over the target."""
    longest_gap_ms: float


async def outcome(plant: Plant, sla: SLA, *, seconds: float, knows_slack: bool) -> Outcome:
    """Tune and serve; the first half minute is warm-up."""
    plant.clients = random.Random(7)
    pod = PlantPod(plant, knows_slack=knows_slack)
    started = plant.now
    loop = TuningLoop(pod, lambda: plant.now)
    target = ServiceTarget("ns/name", TuningSpec(sla=sla, config_hash="one"), (POD,))
    while plant.now < started + seconds:
        plant.run_until(plant.now + PERIOD_S)
        report = await loop.tick(target)
        assert report.pods[0].error == ""
    assert (plant.limits.pace_tpot_ms is not None) == (knows_slack and sla.itl_p99_ms is None)
    means = [
        (job.last_at - job.first_at) * 1e3 / (job.tokens - 1)
        for job in plant.ended
        if job.arrived_at > started + 30 and job.outcome == "ok"
    ]
    assert sla.tpot_p99_ms is not None
    slow = sum(mean > sla.tpot_p99_ms for mean in means) / len(means)
    gaps = [gap_ms for at, gap_ms in plant.gaps if at > started + 30]
    return Outcome(plant.output_tokens, slow, sorted(gaps)[int(0.99 * len(gaps))])


def a_gpu(rate: float, *, noise_seed: int = 1) -> Plant:
    return Plant(
        gpu,
        Limits(256, 8192),
        rate=rate,
        prompt=(300, 3000),
        output=(50, 300),
        device="NVIDIA H100",
        noise=0.03,
        capacity=Capacity(256, 8192, 30_000, 16, 8192),
        seed=noise_seed,
    )


def a_laptop(rate: float, *, noise_seed: int = 1) -> Plant:
    return Plant(laptop, Limits(64, 2048), rate=rate, seed=noise_seed)


@pytest.mark.parametrize("rate", [0.6, 1.0], ids=["light", "overload"])
async def test_a_laptop_serves_no_less_and_its_requests_keep_their_mean(rate: float) -> None:
    """What requests have gained goes to prompts, and is theirs again before they end."""
    sla = SLA(tpot_p99_ms=150.0)

    paced = await outcome(a_laptop(rate), sla, seconds=300, knows_slack=True)
    stepped = await outcome(a_laptop(rate), sla, seconds=300, knows_slack=False)

    assert paced.served >= 0.99 * stepped.served
    assert paced.slow <= 0.01


@pytest.mark.parametrize(
    ("target_ms", "rate"), [(50.0, 13), (25.0, 14)], ids=["loose-light", "tight-overload"]
)
async def test_a_gpu_serves_no_less_and_its_requests_keep_their_mean(
    target_ms: float, rate: float
) -> None:
    """Below capacity all that comes is served either way; above it, no step may be wasted."""
    sla = SLA(tpot_p99_ms=target_ms)

    paced = await outcome(a_gpu(rate), sla, seconds=120, knows_slack=True)
    stepped = await outcome(a_gpu(rate), sla, seconds=120, knows_slack=False)

    assert paced.served >= 0.99 * stepped.served
    assert paced.slow <= 0.01


async def test_a_declared_gap_keeps_the_hard_step_target() -> None:
    """A request's mean must not be kept at the cost of its gaps where both are promised."""
    sla = SLA(tpot_p99_ms=50.0, itl_p99_ms=50.0)

    both = await outcome(a_gpu(12), sla, seconds=90, knows_slack=True)

    assert both.longest_gap_ms <= 50.0
    assert both.slow <= 0.01
