"""What is played again is counted alike: an engine measured against itself shows no error."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from paceline_cli.traffic.offered_load import TokenLengths
from paceline_engine.pacing import NoPacer
from paceline_sim.hardware import CPU_135M, Noise
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_testing.simulated import a_crowd
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from paceline_wire.limits import Limits
from sim_to_real.figures import figures
from sim_to_real.recording import LostError, Recording, WatchedPod
from sim_to_real.run_setup import RunSetup, setups
from sim_to_real.simulated import Learner, capacity_of, capacity_rps, offered, replayed

POD = PodTarget("a", "http://pod", "token")
DEVICE = replace(CPU_135M, noise=Noise(sigma=0.0, correlation=0.0, spike_chance=0.0))
PROMISE = SLA(ttft_p99_ms=6000.0, itl_p99_ms=400.0)
FIXED = RunSetup("fixed", PROMISE, Limits(16, 128))


def a_pod(rate: float = 0.6, *, until_s: float = 60.0) -> SimPod:
    engine = SimulatedEngine(
        DEVICE,
        a_crowd(rate, until_s),
        capacity=capacity_of(DEVICE),
        limits=FIXED.start,
        pacer=NoPacer(),
        seed=0,
    )
    return SimPod(engine)


async def watched_to_its_end(pod: SimPod) -> Recording:
    watched = WatchedPod(pod)
    await watched.begin(POD)
    for now_s in range(5, 400, 5):
        pod.run_until(float(now_s))
        await watched.get_telemetry(POD, watched.next)
    return watched.recording


def test_an_engine_replayed_on_itself_gives_the_same_figures() -> None:
    """Then the error of another is its own and not the counting's."""
    recording = asyncio.run(watched_to_its_end(a_pod()))

    again = replayed(DEVICE, offered(recording), FIXED, NoPacer(), seed=0)

    real, simulated = (figures(one, PROMISE, DEVICE, 60.0) for one in (recording, again))
    assert real.requests == simulated.requests > 20
    for name in ("step_p50_ms", "step_p90_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms"):
        assert getattr(simulated, name) == pytest.approx(getattr(real, name), rel=1e-6), name
    assert simulated.itl_p99_ms == pytest.approx(real.itl_p99_ms, rel=0.02)
    assert simulated.goodput_rps == real.goodput_rps
    assert (simulated.batch, simulated.budget) == (16, 128)
    assert real.table_error < 0.05  # prompts beside the first of a step cost a row more
    assert real.level == pytest.approx(1.0, abs=0.05)


def test_a_slower_run_is_told_by_its_level() -> None:
    slow = replayed(DEVICE, a_crowd(0.3, 60.0), FIXED, NoPacer(), seed=0, level=1.5)

    assert figures(slow, PROMISE, DEVICE, 60.0).level == pytest.approx(1.5, abs=0.1)


def test_the_tuning_loop_moves_the_simulated_engine_and_its_pacer_knows_what_was_learned() -> None:
    recording = asyncio.run(watched_to_its_end(a_pod()))
    learner = Learner(DEVICE)
    before = learner.copy()
    learner.learn(recording.steps)
    tuned = setups(DEVICE, PROMISE)["tuned"]

    played = replayed(DEVICE, offered(recording), tuned, learner.copy(), seed=0)

    counted = figures(played, PROMISE, DEVICE, 60.0)
    assert before.info().samples == 0
    assert learner.copy().info().samples > 100
    assert counted.budget < tuned.start.token_budget
    assert counted.pacer_error < 0.2
    assert 0 < counted.pacer_coverage <= 1


def test_what_was_before_the_watch_is_hidden_from_a_tuning_loop() -> None:
    async def seen() -> Recording:
        pod = a_pod()
        pod.run_until(30.0)
        watched = WatchedPod(pod)
        await watched.begin(POD)
        pod.run_until(60.0)
        await watched.get_telemetry(POD, 0)
        return watched.recording

    recording = asyncio.run(seen())

    assert recording.begun_at >= 30.0
    assert recording.steps
    assert min(step.at for step in recording.steps) > recording.begun_at
    assert min(recording.slices) >= recording.begun_at


def test_a_second_reader_is_refused_as_records_would_count_twice() -> None:
    async def read_twice() -> None:
        pod = a_pod()
        watched = WatchedPod(pod)
        await watched.begin(POD)
        pod.run_until(20.0)
        await watched.get_telemetry(POD, 0)
        await watched.get_telemetry(POD, 0)

    with pytest.raises(LostError, match="two readers"):
        asyncio.run(read_twice())


def test_capacity_is_less_for_longer_prompts_and_fixed_limits_keep_the_target() -> None:
    fixed = setups(DEVICE, PROMISE)["fixed"]
    short, long = TokenLengths(60, 0.5, 8, 200), TokenLengths(300, 0.5, 8, 800)
    output = TokenLengths(24, 0.5, 8, 64)

    assert fixed.start.token_budget >= fixed.start.max_batch_size
    assert (
        0 < capacity_rps(DEVICE, fixed, long, output) < capacity_rps(DEVICE, fixed, short, output)
    )


def test_requests_are_offered_as_they_were_recorded() -> None:
    recording = asyncio.run(watched_to_its_end(a_pod()))

    came = offered(recording)

    assert np.all(came.arrival_s >= 0)
    assert sorted(came.prompt.tolist()) == sorted(r.prompt_tokens for r in recording.requests)
