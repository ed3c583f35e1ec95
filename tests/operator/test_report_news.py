"""What a report says is told at once, its numbers in their turn."""

from dataclasses import replace

from paceline_operator.report_news import is_news
from paceline_testing.reports import a_pod_report, a_report


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
