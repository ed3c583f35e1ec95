"""The tuner's report as the numbers of a status."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from paceline_api.status import (
    ChangeEntry,
    LaneStatus,
    ObservedLatency,
    PodTuning,
    ServiceCapacity,
    SlaStatus,
    TuningStatus,
    TuningSummary,
)
from paceline_api.units import as_latency, timestamp
from paceline_operator.experiment_status import experiment_status
from paceline_tuner import service_report as tuner

_MAX_PODS: Final = 100
_MAX_CHANGES: Final = 5
_MAX_REASON: Final = 1024


def sla_status(report: tuner.ServiceReport) -> SlaStatus:
    """Write what was measured over the window."""
    return SlaStatus(
        observed=_observed(report.observed, report.at),
        attainment=_share(report.observed.attainment),
        capacity=ServiceCapacity(
            requests_per_second=_rate(report.capacity_rps), utilization=_share(report.utilization)
        ),
        batch=None if report.batch is None else _lane(report.batch),
    )


def _lane(lane: tuner.LaneReport) -> LaneStatus:
    return LaneStatus(
        observed=_observed(lane.observed, None),
        attainment=_share(lane.observed.attainment),
        verdict=lane.verdict,
    )


def _observed(observed: tuner.MeasuredLatency, at: float | None) -> ObservedLatency:
    return ObservedLatency(
        ttft_p99=as_latency(observed.ttft_p99_ms),
        tpot_p99=as_latency(observed.tpot_p99_ms),
        itl_p99=as_latency(observed.itl_p99_ms),
        samples=observed.samples,
        window_end=None if at is None else _time(at),
    )


def tuning_status(report: tuner.ServiceReport) -> TuningStatus:
    """Write each pod's limits and the last changes."""
    newest = max((change.at for change in report.history), default=None)
    return TuningStatus(
        summary=TuningSummary(
            batch_size=_span([pod.batch_size for pod in report.pods]),
            token_budget=_span([pod.token_budget for pod in report.pods]),
        ),
        recommended_replicas=report.recommended_replicas,
        last_change_time=None if newest is None else _time(newest),
        pods_omitted=max(0, len(report.pods) - _MAX_PODS),
        pods=[_pod(pod) for pod in sorted(report.pods, key=lambda pod: pod.name)[:_MAX_PODS]],
        history=[_change(change) for change in report.history[:_MAX_CHANGES]],
        experiment=experiment_status(report.experiment) if report.experiment else None,
    )


def _pod(pod: tuner.PodReport) -> PodTuning:
    return PodTuning(
        name=pod.name,
        node=pod.node or None,
        batch_size=pod.batch_size,
        token_budget=pod.token_budget,
        running=pod.running,
        waiting=pod.waiting,
        ttft_p99=as_latency(pod.observed.ttft_p99_ms),
        tpot_p99=as_latency(pod.observed.tpot_p99_ms),
        phase=pod.phase,
        binding=pod.binding,
        verdict=pod.verdict,
        reason=(pod.error or pod.reason)[:_MAX_REASON] or None,
        last_change=_time(pod.last_change.at) if pod.last_change else None,
    )


def _change(change: tuner.LimitsChange) -> ChangeEntry:
    return ChangeEntry(
        time=_time(change.at),
        pod=change.pod,
        from_=f"{change.from_batch_size}/{change.from_token_budget}",
        to=f"{change.to_batch_size}/{change.to_token_budget}",
        reason=change.reason[:_MAX_REASON],
    )


def _span(values: Sequence[int | None]) -> str | None:
    """Write one number, or the lowest and the highest: `16-48`."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return str(low) if low == high else f"{low}-{high}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _time(unix_s: float) -> str:
    return timestamp(datetime.fromtimestamp(unix_s, UTC))
