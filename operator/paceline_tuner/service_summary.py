"""What the pods' decisions say about the whole service (loop L4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_tuner.arrival_trend import COUNTED_S
from paceline_tuner.attainment import NOTHING, combined
from paceline_tuner.condition import Condition
from paceline_tuner.decision import Decision
from paceline_tuner.lanes import batch_report
from paceline_tuner.service_report import PodReport, ServiceReport
from paceline_tuner.service_target import ServiceTarget
from paceline_tuner.sla_conditions import (
    device_healthy,
    sla_achievable,
    sla_met,
    telemetry_available,
    tuning_active,
)
from paceline_tuner.throughput import together, token_cost
from paceline_tuner.window import Evidence

_HISTORY = 5


@dataclass(frozen=True, slots=True)
class PodTick:
    """One pod's part of a tick."""

    report: PodReport
    decision: Decision
    error: str
    """Why there is no telemetry; empty where there is some."""
    evidence: Evidence | None


def summarize(
    target: ServiceTarget,
    ticks: Sequence[PodTick],
    last: ServiceReport | None,
    now: float,
    *,
    recommended: int | None,
    quiet_s: float,
) -> ServiceReport:
    """Conclude one tick from its pods and from the `last` report. `now` is Unix seconds.

    `recommended` are the pods that are needed, where λ* is known; nothing has arrived for `quiet_s`
    seconds.
    """
    spec = target.spec
    decisions = [tick.decision for tick in ticks if not tick.error]
    is_seen = bool(decisions)
    counts = sum((decision.counts for decision in decisions), start=NOTHING)
    changes = [tick.decision.change for tick in ticks if tick.decision.change is not None]
    history = last.history if last is not None else ()
    pods = tuple(tick.report for tick in ticks)
    known = known_capacities(ticks)
    # A pod that has yet to learn its λ* is taken to be like the others: one that starts, or gives
    # no telemetry, must not hide from an autoscaler what the others measure.
    capacity_rps = sum(known) * len(decisions) / len(known) if known else None
    arrivals_rps = sum(tick.report.arrival_rps for tick in ticks if not tick.error)
    observed = combined([decision.observed for decision in decisions], counts, spec.sla.objective)
    if recommended is None and _is_idle(ticks):
        recommended = _while_idle(target.replicas, quiet_s)
    given = together(tick.report.throughput for tick in ticks)
    return ServiceReport(
        key=target.key,
        at=now,
        observed=observed,
        capacity_rps=capacity_rps,
        utilization=arrivals_rps / capacity_rps if capacity_rps else None,
        recommended_replicas=recommended,
        conditions=(
            telemetry_available(
                [tick.error for tick in ticks],
                counts,
                is_token_refused=any(pod.refuses_token for pod in pods),
            ),
            sla_met(counts, observed, spec, _last_met(last), is_seen=is_seen),
            sla_achievable(decisions),
            device_healthy(decisions),
            tuning_active(spec, decisions, is_seen=is_seen),
        ),
        pods=pods,
        batch=batch_report(spec, [tick.evidence for tick in ticks if tick.evidence]),
        history=(*reversed(changes), *history)[:_HISTORY],
        acknowledged=bool(pods) and all(pod.acknowledged_hash == spec.config_hash for pod in pods),
        throughput=given,
        # A pod that gives no telemetry costs as much as one that does.
        cost=token_cost(given, price_per_hour=spec.price_per_hour, num_pods=len(pods)),
    )


def known_capacities(ticks: Sequence[PodTick]) -> list[float]:
    """Return λ* of each pod that gives telemetry and has learned it, requests per second."""
    rates = [tick.decision.prediction.capacity_rps for tick in ticks if not tick.error]
    return [rate for rate in rates if rate is not None]


def _is_idle(ticks: Sequence[PodTick]) -> bool:
    """Tell whether every ready pod tells that it has nothing to do; False without one."""
    return bool(ticks) and all(
        not tick.error
        and tick.report.arrival_rps == tick.report.running == tick.report.waiting == 0
        for tick in ticks
    )


def _while_idle(replicas: int | None, quiet_s: float) -> int | None:
    """Return the pods that a service without load needs, which no λ* is needed for.

    That is one, once nothing has arrived for as long as arrivals are counted over. Before, pods
    may have just come back to a load, so it is as many as are wanted now.
    """
    if quiet_s >= COUNTED_S:
        return 1
    return replicas or None


def _last_met(last: ServiceReport | None) -> Condition | None:
    conditions = last.conditions if last is not None else ()
    return next((found for found in conditions if found.type == "SLAMet"), None)
