"""Weights from load reports, and the schedule that follows them."""

from collections import Counter

import pytest

from balancing.weights import BLACKOUT_S, EXPIRATION_S, Report, Reports, Schedule

LATER_S = BLACKOUT_S + 1.0


def told(*reports: Report | None, at_s: float = 0.0, scale: int = 1) -> Reports:
    """Pods that have reported this, first at `at_s`."""
    heard = Reports([None] * len(reports), scale)
    for pod, report in enumerate(reports):
        if report is not None:
            heard.hear(pod, Report(at_s, report.rps, report.utilization))
    return heard


@pytest.mark.parametrize(
    ("rps", "utilization", "weight"),
    [(8.0, 0.5, 16), (8.0, 2.0, 4), (2.5, 0.98, 2), (0.5, 0.9, 1)],
    ids=["half used", "twice too much", "cut", "at least one"],
)
def test_a_weight_is_the_rate_over_the_utilization(
    rps: float, utilization: float, weight: int
) -> None:
    """Envoy keeps whole numbers of at least 1."""
    assert told(Report(0.0, rps, utilization)).weights(LATER_S) == [weight]


def test_a_scale_keeps_what_whole_numbers_lose() -> None:
    assert told(Report(0.0, 2.5, 1.0), Report(0.0, 1.0, 1.0), scale=100).weights(LATER_S) == [
        250,
        100,
    ]


def test_the_newest_report_counts_alone() -> None:
    """Nothing is smoothed at the gateway."""
    reports = told(Report(0.0, 8.0, 1.0))
    reports.hear(0, Report(5.0, 2.0, 1.0))

    assert reports.weights(LATER_S) == [2]


def test_who_has_not_reported_has_the_median() -> None:
    reports = told(Report(0.0, 2.0, 1.0), Report(0.0, 4.0, 1.0), Report(0.0, 9.0, 1.0), None)

    assert reports.weights(LATER_S) == [2, 4, 9, 4]


def test_first_reports_wait_out_the_blackout() -> None:
    """Until then all pods weigh the same."""
    reports = told(Report(0.0, 2.0, 1.0), Report(0.0, 8.0, 1.0))

    assert reports.weights(BLACKOUT_S - 1.0) == [1, 1]
    assert reports.weights(BLACKOUT_S + 1.0) == [2, 8]


def test_an_expired_report_does_not_count_and_begins_a_new_blackout() -> None:
    reports = told(Report(0.0, 2.0, 1.0), Report(0.0, 8.0, 1.0))
    late_s = EXPIRATION_S + 1.0
    reports.hear(0, Report(late_s, 2.0, 1.0))
    expired = reports.weights(late_s)
    reports.hear(1, Report(late_s, 8.0, 1.0))

    assert expired == [2, 2]
    assert reports.weights(late_s + 1.0) == [2, 2]
    assert reports.weights(late_s + LATER_S) == [2, 8]


@pytest.mark.parametrize("picked", [0, 5, 123_457])
def test_picks_are_in_proportion_to_the_weights(picked: int) -> None:
    """Wherever the schedule begins."""
    schedule = Schedule([1, 2, 5], picked)

    counts = Counter(schedule.pick() for _ in range(80))

    assert all(abs(counts[pod] - share) <= 1 for pod, share in ((0, 10), (1, 20), (2, 50)))


def test_equal_weights_are_round_robin() -> None:
    schedule = Schedule([3, 3, 3])

    assert [schedule.pick() for _ in range(6)] == [0, 1, 2, 0, 1, 2]
