"""The rules that follow a measured latency: PI on p99 and Vegas."""

from dataclasses import replace

import pytest

from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord
from tune_report.arms.pi import PiOnP99
from tune_report.arms.reading import Reading
from tune_report.arms.vegas import Vegas

READING = Reading(
    batch=100,
    budget=2048,
    running=100,
    waiting=0,
    epoch=1,
    max_batch=1024,
    max_budget=8192,
    itl_p99_ms=50.0,
    tpot_p99_ms=30.0,
    ttft_p99_ms=200.0,
    newest=(),
)
ITL_50 = SLA(ttft_p99_ms=1000.0, itl_p99_ms=50.0)


def ended(tpot_ms: float, outcome: str = "ok") -> RequestRecord:
    return RequestRecord(1, 0.0, 1.0, 100, 10, outcome, tpot_ms=tpot_ms)


def held(rule: PiOnP99, reading: Reading, periods: int) -> Reading:
    """The rule acts on an engine whose step is 25 ms per 1,024 tokens of budget."""
    for _ in range(periods):
        batch, budget = rule.limits(reading, ITL_50)
        reading = replace(reading, batch=batch, budget=budget, itl_p99_ms=25.0 * budget / 1024)
    return reading


@pytest.mark.parametrize("start", [512, 8192], ids=["from below", "from above"])
def test_pi_brings_p99_to_its_target_from_either_side(start: int) -> None:
    reading = replace(READING, budget=start, itl_p99_ms=25.0 * start / 1024)

    last = held(PiOnP99(), reading, periods=60)

    assert last.budget == pytest.approx(2048, rel=0.02)
    assert last.batch == READING.batch


def test_pi_holds_without_samples_and_stays_within_batch_and_capacity() -> None:
    rule, stalled = PiOnP99(), replace(READING, itl_p99_ms=1e6)
    quick = replace(READING, itl_p99_ms=0.01)

    assert rule.limits(replace(READING, itl_p99_ms=None), ITL_50) == (100, 2048)
    assert [rule.limits(stalled, ITL_50)[1] for _ in range(100)][-1] == READING.batch
    assert [rule.limits(quick, ITL_50)[1] for _ in range(100)][-1] == READING.max_budget
    # Nothing has wound up beyond the bound: one miss is enough to leave it.
    assert rule.limits(stalled, ITL_50)[1] < READING.max_budget


def test_pi_follows_the_target_that_is_kept_worst() -> None:
    both = SLA(itl_p99_ms=100.0, tpot_p99_ms=20.0)

    assert PiOnP99().limits(READING, both)[1] < READING.budget


def test_vegas_grows_while_tokens_take_their_least_time_and_shrinks_when_they_queue() -> None:
    rule = Vegas()
    alone = replace(READING, newest=(ended(10.0),))

    assert rule.limits(alone, ITL_50) == (100, 2048)  # the least time is learned
    assert rule.limits(alone, ITL_50) == (112, 2048)  # no queue: 6 * log10
    assert rule.limits(replace(alone, newest=(ended(10.3),)), ITL_50) == (114, 2048)  # 4 queue
    assert rule.limits(replace(alone, newest=(ended(10.8),)), ITL_50) == (114, 2048)  # 9 queue
    assert rule.limits(replace(alone, newest=(ended(20.0),)), ITL_50) == (112, 2048)  # 57 queue


def test_vegas_shrinks_on_a_dropped_request_and_holds_where_few_run() -> None:
    rule = Vegas()
    alone = replace(READING, newest=(ended(10.0),))
    rule.limits(alone, ITL_50)

    assert rule.limits(replace(alone, running=49), ITL_50) == (100, 2048)
    assert rule.limits(replace(alone, newest=(ended(10.0), ended(10.0, "shed"))), ITL_50)[0] == 98


def test_vegas_measures_the_least_time_anew_after_many_requests() -> None:
    """A device that got slower for good must not look queued for ever."""
    rule = Vegas()
    rule.limits(replace(READING, newest=(ended(10.0),)), ITL_50)
    slow = replace(READING, newest=tuple(ended(20.0) for _ in range(2250)))

    rule.limits(slow, ITL_50)

    assert rule.limits(replace(READING, newest=(ended(20.0),)), ITL_50)[0] > 100
