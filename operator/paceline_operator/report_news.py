"""Decide whether a tuner's report must be written to status at once. Pure."""

from collections.abc import Hashable
from dataclasses import replace

from paceline_tuner.service_report import ExperimentReport, MeasuredLatency, ServiceReport


def is_news(report: ServiceReport, told: ServiceReport | None, *, numbers_are_due: bool) -> bool:
    """Whether a report says something new, or has new numbers and they are due.

    `told` is the last report that was told; None before the first.
    """
    if told is None or _without_numbers(report) != _without_numbers(told):
        return True
    return numbers_are_due and replace(report, at=told.at) != told


def _without_numbers(report: ServiceReport) -> Hashable:
    return (
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
        _verdicts(report.observed),
        _verdicts(report.batch.observed) if report.batch else (),
    )


def _verdicts(observed: MeasuredLatency) -> Hashable:
    return tuple((each.name, each.verdict) for each in observed.by_prompt_tokens)


def _standing(experiment: ExperimentReport | None) -> Hashable:
    if experiment is None:
        return None
    return experiment.name, experiment.verdict, experiment.candidate_pods
