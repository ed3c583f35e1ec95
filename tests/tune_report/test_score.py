from dataclasses import replace

import numpy as np
import pytest

from paceline_sim.hardware import Disturbance
from paceline_sim.requests import Requests
from tune_report.arms.arm import Verdict
from tune_report.device_verdicts import DeviceVerdicts, device_verdicts
from tune_report.episode import Moment, PodRun
from tune_report.mixes import CONVERSATION
from tune_report.score import EpisodeScore, score
from tune_report.settings import H100_ITL
from tune_report.workloads import PodPart, ReportWorkload

STEPS = 1000
STEP_MS = 20.0


def nobody(_random: np.random.Generator, _unit_rps: float) -> tuple[PodPart, ...]:
    raise AssertionError("the run is given, not made")


WORKLOAD = ReportWorkload("test", H100_ITL, nobody, CONVERSATION, duration_s=20.0)


def a_run(count: int = 10, **changes: object) -> PodRun:
    """Requests arrive a second apart, get their first token after 100 ms, and end 200 steps on."""
    arrival_s = np.arange(count, dtype=np.float64)
    run = PodRun(
        start_s=0.0,
        requests=Requests(
            arrival_s,
            np.full(count, 100),
            np.full(count, 201),
            np.zeros(count, dtype=np.int64),
            np.zeros(count, dtype=np.int8),
        ),
        ttft_ms=np.full(count, 100.0),
        tpot_ms=np.full(count, STEP_MS),
        itl_max_ms=np.full(count, STEP_MS),
        finished_s=arrival_s + 0.1 + 200 * STEP_MS / 1e3,
        outcome=np.full(count, 1, dtype=np.int8),
        step_end_s=np.arange(1, STEPS + 1, dtype=np.float64) * STEP_MS / 1e3,
        step_ms=np.full(STEPS, STEP_MS),
        step_decode=np.full(STEPS, 4),
        step_predicted_ms=np.zeros(STEPS),
        moments=(),
    )
    return replace(run, **changes)  # type: ignore[arg-type]  # a builder's free fields


def judged(run: PodRun) -> EpisodeScore:
    return score(WORKLOAD, (run,))


def late_steps(*indices: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    times = np.full(STEPS, STEP_MS)
    times[list(indices)] = 80.0
    return times


def test_requests_within_all_targets_are_good() -> None:
    result = judged(a_run())

    assert (result.offered, result.good) == (10, 10)
    assert result.good_rps == pytest.approx(0.5)
    assert result.attainment.least == 1.0
    assert result.violation_s == 0.0


@pytest.mark.parametrize("outcome", [0, 2, 3])
def test_unfinished_shed_and_failed_requests_are_missed(outcome: int) -> None:
    """Dropping what is late must never look better than serving it."""
    outcomes = np.full(10, 1, dtype=np.int8)
    outcomes[3] = outcome

    result = judged(a_run(outcome=outcomes))

    assert result.good == 9
    assert result.attainment.ttft == pytest.approx(0.9)


def test_a_late_first_token_is_a_miss() -> None:
    ttft_ms = np.full(10, 100.0)
    ttft_ms[0] = 1000.5

    assert judged(a_run(ttft_ms=ttft_ms)).good == 9


def test_one_late_gap_in_a_hundred_is_allowed_and_a_third_in_two_hundred_is_not() -> None:
    """The SLA is a 99th percentile: of 200 gaps two may be late."""
    first_tokens = 0.1 / (STEP_MS / 1e3)
    inside = int(first_tokens) + 10

    two = judged(a_run(count=1, step_ms=late_steps(inside, inside + 1)))
    three = judged(a_run(count=1, step_ms=late_steps(inside, inside + 1, inside + 2)))

    assert two.good == 1
    assert three.good == 0


def test_late_steps_before_the_first_token_and_after_the_last_are_not_the_requests_gaps() -> None:
    """The step that makes the first token is no gap."""
    result = judged(a_run(count=1, step_ms=late_steps(2, 3, 4, 205, 206, 207)))

    assert result.good == 1


def test_gaps_weigh_by_the_sequences_that_waited() -> None:
    rows = np.full(STEPS, 1)
    rows[500] = 1001
    result = judged(a_run(step_ms=late_steps(500), step_decode=rows))

    assert result.attainment.itl == pytest.approx(1 - 1001 / 2000)


def test_a_gap_over_a_preemption_counts_though_no_step_was_slow() -> None:
    longest = np.full(10, STEP_MS)
    longest[2] = 400.0

    result = judged(a_run(itl_max_ms=longest))

    assert result.attainment.itl < 1.0


def test_windows_with_more_misses_than_chance_are_in_violation() -> None:
    slow = late_steps(*range(600, 700))

    assert judged(a_run(step_ms=slow)).violation_s == 10.0


@pytest.mark.parametrize(
    ("device", "found", "false"),
    [
        (((5.0, "True"), (200.0, "False"), (350.0, "True")), 1, 0),
        (((5.0, "True"), (225.0, "False"), (350.0, "True")), 0, 0),
        (((5.0, "True"), (200.0, "False")), 0, 20),
        (((5.0, "False"), (10.0, "True"), (200.0, "False"), (350.0, "True")), 1, 1),
        (((5.0, "True"),), 0, 0),
    ],
    ids=["in time", "late", "not withdrawn", "false alarm", "missed"],
)
def test_a_slow_device_counts_where_it_is_told_in_time(
    device: tuple[tuple[float, Verdict], ...], found: int, false: int
) -> None:
    """The device is slow from 160 to 320 s; a minute is left on either side."""
    workload = replace(WORKLOAD, duration_s=480.0, disturbances=(Disturbance(160.0, 320.0, 1.35),))
    moments = tuple(
        Moment(5.0 * (i + 1), 0, 8, 64, None, 0, 0, "True", 1.1, _held(device, 5.0 * (i + 1)))
        for i in range(96)
    )

    verdict = device_verdicts(workload, [score(workload, (a_run(moments=moments),))])

    assert verdict == DeviceVerdicts(slow=1, found=found, false=false)


def _held(states: tuple[tuple[float, Verdict], ...], at_s: float) -> Verdict:
    held: Verdict = ""
    for since_s, value in states:
        held = value if since_s <= at_s else held
    return held
