"""An experiment's report written to status, and read back by an operator that starts anew."""

from datetime import UTC, datetime
from typing import Final

from paceline_api.status import ArmCounts, ArmRates, ExperimentStatus, HeldPolicy, HeldRange
from paceline_api.units import timestamp
from paceline_tuner.service_report import ArmReport, ExperimentReport
from paceline_tuner.service_spec import Policy, Range

_MAX_PODS: Final = 100
_MAX_REASON: Final = 1024


def experiment_status(report: ExperimentReport) -> ExperimentStatus:
    """Write how the experiment stands."""
    since = None if report.since is None else datetime.fromtimestamp(report.since, UTC)
    return ExperimentStatus(
        name=report.name,
        kind=report.kind,
        verdict=report.verdict,
        since=None if since is None else timestamp(since),
        candidate_pods=list(report.candidate_pods[:_MAX_PODS]),
        requests=ArmCounts(base=report.base.requests, candidate=report.candidate.requests),
        miss_rate=ArmRates(base=_share(report.base), candidate=_share(report.candidate)),
        reason=report.reason[:_MAX_REASON],
        held=None if report.held is None else _held(report.held),
    )


def previous_report(status: ExperimentStatus | None) -> ExperimentReport | None:
    """Read what an operator before this one wrote: name, verdict and the policy held back.

    Counts are left out, so that the report changes with the verdict only.
    """
    if status is None:
        return None
    return ExperimentReport(
        name=status.name,
        kind=status.kind,
        verdict=status.verdict,
        reason="" if status.verdict == "Running" else status.reason,
        held=None if status.held is None else _policy(status.held),
    )


def _share(arm: ArmReport) -> str | None:
    rate = arm.miss_rate
    return None if rate is None else f"{rate:.4f}"


def _held(policy: Policy) -> HeldPolicy:
    return HeldPolicy(
        mode=policy.mode,
        step_margin=f"{policy.step_margin:g}",
        batch_size=_bounds(policy.batch_size),
        token_budget=_bounds(policy.token_budget),
    )


def _bounds(bounds: Range) -> HeldRange:
    return HeldRange(min=bounds.min, max=bounds.max, initial=bounds.initial)


def _policy(held: HeldPolicy) -> Policy:
    return Policy(
        mode=held.mode,
        step_margin=float(held.step_margin),
        batch_size=_range(held.batch_size),
        token_budget=_range(held.token_budget),
    )


def _range(held: HeldRange) -> Range:
    return Range(held.min, held.max, held.initial)
