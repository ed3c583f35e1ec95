"""Tell what of a tuner's report cannot wait until its numbers are told. Pure."""

from collections.abc import Hashable
from dataclasses import dataclass

from paceline_tuner.service_report import ExperimentReport, ServiceReport


@dataclass(frozen=True, slots=True)
class Told:
    """What was told of a report, and when."""

    stands: Hashable
    """What the report says without its numbers."""
    at: float
    """Unix seconds."""


def told_by(report: ServiceReport) -> Told:
    """Leave out the numbers of a report."""
    stands = (
        tuple((each.type, each.status, each.reason) for each in report.conditions),
        tuple(
            (
                pod.name,
                pod.phase,
                pod.verdict,
                pod.error,
                pod.acknowledged_hash,
                pod.refuses_token,
                pod.adapters,
            )
            for pod in report.pods
        ),
        report.acknowledged,
        _standing(report.experiment),
        _standing(report.image_trial),
        report.batch.verdict if report.batch else "",
    )
    return Told(stands, report.at)


def is_news(now: Told, last: Told | None, interval_s: float) -> bool:
    """Whether a report is to be told: it says something else, or its numbers are due."""
    return last is None or now.stands != last.stands or now.at - last.at >= interval_s


def _standing(experiment: ExperimentReport | None) -> Hashable:
    if experiment is None:
        return None
    return experiment.name, experiment.verdict, experiment.candidate_pods
