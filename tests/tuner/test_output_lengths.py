"""Output lengths count requests that still run for as far as they came."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_gpu, clients
from paceline_testing.telemetry import a_request
from paceline_tuner.demand import ASSUMED, demand
from paceline_tuner.output_lengths import Seen, lengths, seen
from paceline_tuner.service_target import PodTarget
from paceline_tuner.window import Evidence, Window

SHORT, LONG = (20, 100), (3000, 5000)


def mixed(rate: float, seed: int) -> Requests:
    """One of five requests wants a long output."""
    short, long = (clients(rate, prompt=(50, 100), output=o, seed=seed) for o in (SHORT, LONG))
    is_long = np.random.default_rng(seed).random(len(short)) < 0.2
    return replace(short, output=np.where(is_long, long.output, short.output))


async def overloaded(seconds: float, seed: int) -> tuple[Evidence, float]:
    """More requests than a GPU can serve, and the mean output of those it began in the window."""
    engine = a_gpu(mixed(30.0, seed), batch=96, seed=seed)
    engine.run_until(seconds)
    window = Window()
    window.add(await SimPod(engine).get_telemetry(PodTarget("pod", "http://pod", ""), 0))
    evidence = window.evidence(60.0)
    assert evidence is not None
    began = engine.jobs["output"][engine.jobs["first_s"] > engine.now - 60.0]
    return evidence, float(began.mean())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("seconds", [60.0, 75.0, 150.0])
async def test_overload_does_not_make_outputs_look_short(seconds: float, seed: int) -> None:
    """Many long outputs have not ended, and still count."""
    evidence, mean = await overloaded(seconds, seed)

    assert 0.9 * mean <= demand(evidence, ASSUMED).output <= 1.3 * mean


async def test_completed_requests_alone_would_be_far_off() -> None:
    """The engine of these tests shows the bias that the estimate takes away."""
    evidence, mean = await overloaded(60.0, 1)
    ended = [r.output_tokens for r in evidence.requests if r.outcome == "ok"]

    assert sum(ended) / len(ended) < 0.4 * mean


def test_without_running_requests_it_is_the_plain_mean() -> None:
    """Nothing is censored, so nothing is estimated."""
    outputs = [Seen(0, length, has_ended=True) for length in (10, 20, 30, 60)]

    found = lengths(outputs)

    assert found is not None
    assert found.mean == pytest.approx(30.0)
    assert found.deviation == pytest.approx(math.sqrt(350.0))


def test_a_known_example_comes_out() -> None:
    """Ends at 6, 6, 6, 7, 10, 13, 16, 22, 23 and runs on at 6, 9, ...: Freireich's 21 patients."""
    ended = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    running = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    outputs = [Seen(0, x, has_ended=True) for x in ended]
    outputs += [Seen(0, x, has_ended=False) for x in running]

    found = lengths(outputs)

    assert found is not None
    assert found.mean == pytest.approx(23.287, abs=0.01)  # restricted to 35


def test_nothing_ended_is_no_estimate() -> None:
    """How far running requests came bounds a length from below, and no more."""
    assert lengths([Seen(0, 50, has_ended=False)]) is None
    assert lengths([]) is None


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_requests_older_than_the_window_do_not_bias_it(seed: int) -> None:
    """Who began before the window is only there because it had not ended by then."""
    generator = random.Random(seed)
    now, begin, pace_ms = 1000.0, 940.0, 100.0
    records, running, drawn = [], [], []
    for number in range(8000):
        arrived = now - 400.0 + number * 0.05
        length = 1 + int(generator.expovariate(1 / 600))
        drawn.append(length)
        end = arrived + length * pace_ms / 1e3
        if end > now:
            running.append(int((now - arrived) * 1e3 / pace_ms))
        elif end >= begin:
            records.append(
                a_request(
                    number,
                    end,
                    arrived_at=arrived,
                    ttft_ms=pace_ms,
                    tpot_ms=pace_ms,
                    output_tokens=length,
                )
            )

    outputs = seen(
        records[::3],
        running[::5],
        num_running=len(running),
        num_ended=len(records),
        begin=begin,
        made=60e3 / pace_ms,
    )
    found = lengths(outputs)

    assert found is not None
    assert found.mean == pytest.approx(sum(drawn) / len(drawn), rel=0.15)


def test_a_client_that_left_is_not_an_end() -> None:
    """Its output would have been longer."""
    records = [a_request(n, 99.0, output_tokens=40) for n in range(10)]
    records += [a_request(n, 99.0, output_tokens=10, outcome="cancelled") for n in range(10)]

    found = lengths(seen(records, (), num_running=0, num_ended=20, begin=0.0, made=0.0))

    assert found is not None
    assert found.mean == pytest.approx(40.0)
