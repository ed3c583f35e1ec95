"""What a report says is told at once, its numbers in their turn."""

from dataclasses import replace

from paceline_operator.report_news import is_news
from paceline_testing.reports import a_pod_report, a_report
from paceline_tuner.service_report import Throughput, TokenCost


def test_numbers_alone_wait_for_their_turn() -> None:
    """With a thousand services, minutes."""
    report = a_report(pods=(a_pod_report(),), at=100.0)
    later = replace(report, at=129.0, utilization=0.9, capacity_rps=7.0)

    assert not is_news(later, report, numbers_are_due=False)
    assert is_news(later, report, numbers_are_due=True)


def test_the_same_numbers_are_no_news() -> None:
    """Nobody asks the service anything, and time goes on."""
    report = a_report(pods=(a_pod_report(),), at=100.0)

    assert not is_news(replace(report, at=500.0), report, numbers_are_due=True)


def test_the_first_report_is_news() -> None:
    """Nothing was told before."""
    assert is_news(a_report(), None, numbers_are_due=False)


def test_what_a_person_acts_on_is_news() -> None:
    """A verdict, an error, a configuration that has arrived."""
    report = a_report(pods=(a_pod_report(),))
    (pod,) = report.pods

    for other in (
        replace(report, pods=(replace(pod, verdict="Violating"),)),
        replace(report, pods=(replace(pod, error="it does not answer"),)),
        replace(report, pods=()),
        replace(report, acknowledged=not report.acknowledged),
    ):
        assert is_news(other, report, numbers_are_due=False)


def test_other_rates_and_costs_are_numbers_and_wait_like_the_others() -> None:
    """Jitter of a rate writes no status before its time."""
    told = a_report(throughput=Throughput(40.0, 160.0, 0.5), cost=TokenCost(5.0, 1.0))
    report = a_report(throughput=Throughput(41.0, 160.0, 0.5), cost=TokenCost(4.9, 1.0))

    assert not is_news(report, told, numbers_are_due=False)
    assert is_news(report, told, numbers_are_due=True)
    assert not is_news(told, told, numbers_are_due=True)
