"""Attainment counts every offered request; verdicts need more than bad luck."""

import pytest

from paceline_testing.telemetry import a_request
from paceline_tuner.attainment import Counts, count, is_breach, is_certain, verdict
from paceline_tuner.latency_sketch import LatencySketch, p99
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import SketchSlice

NO_GAPS = LatencySketch(())


@pytest.mark.parametrize("outcome", ["refused", "shed", "timeout", "failed"])
def test_a_request_that_was_not_served_is_a_miss(outcome: str) -> None:
    """Shedding must not make the figures better."""
    records = [a_request(1, 10.0), a_request(2, 10.0, outcome=outcome, ttft_ms=None, tpot_ms=None)]

    counts = count(SLA(ttft_p99_ms=500.0), records, NO_GAPS)

    assert (counts.requests, counts.missed_requests) == (2, 1)
    assert counts.attainment == 0.5


def test_a_client_that_left_in_time_is_not_counted() -> None:
    """It asked for nothing that was missed."""
    records = [a_request(1, 10.0), a_request(2, 10.0, outcome="cancelled", ttft_ms=None)]

    assert count(SLA(ttft_p99_ms=500.0), records, NO_GAPS).requests == 1


def test_slow_gaps_lower_the_attainment() -> None:
    """A gap target is kept by gaps, whatever the requests' means are."""
    gaps = LatencySketch([SketchSlice("itl_ms", "interactive", 0.0, 0.01, 0, {200: 90, 300: 10})])

    counts = count(SLA(itl_p99_ms=100.0), [a_request(1, 10.0)], gaps)

    assert counts.attainment == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("trials", "certified", "breach"),
    [(300, 0, 7), (500, 1, 10), (1000, 4, 16), (2000, 12, 29), (5000, 38, 63), (10_000, 83, 118)],
)
def test_counts_decide_as_clopper_and_pearson_have_it(
    trials: int, certified: int, breach: int
) -> None:
    """One-sided 95 % bounds of a 99 % objective."""
    assert is_certain(trials, certified, 0.99)
    assert not is_certain(trials, certified + 1, 0.99)
    assert is_breach(trials, breach, 0.99)
    assert not is_breach(trials, breach - 1, 0.99)


def test_fewer_than_299_requests_certify_nothing() -> None:
    """No miss of 298 still leaves one chance in twenty."""
    assert not is_certain(298, 0, 0.99)
    assert is_certain(299, 0, 0.99)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (Counts(0, 0), "Idle"),
        (Counts(10, 0), "Unknown"),
        (Counts(60, 0), "Meeting"),
        (Counts(60, 1), "Unknown"),
        (Counts(60, 6), "Violating"),
        (Counts(60, 0, 1000, 40), "Violating"),
        (Counts(60, 0, 1000, 16, rows=16.0), "Unknown"),
    ],
    ids=["idle", "few", "meeting", "one-miss", "breach", "slow-gaps", "one-slow-step"],
)
def test_verdicts(counts: Counts, expected: str) -> None:
    """One slow step that delayed sixteen sequences is one miss, not sixteen."""
    assert verdict(counts, 0.99) == expected


def test_sketch_quantiles_are_within_alpha() -> None:
    """Merged slices keep the relative error that they promise."""
    slices = [
        SketchSlice("itl_ms", "interactive", start, 0.01, 0, dict.fromkeys(range(first, 300), 1))
        for start, first in ((0.0, 100), (5.0, 200))
    ]
    sketch = LatencySketch(slices)

    assert sketch.count == 300
    median = sketch.quantile(0.5)
    assert median is not None
    assert sketch.over(median) == 150
    assert p99(range(1, 101)) == 99
    assert p99([]) is None
