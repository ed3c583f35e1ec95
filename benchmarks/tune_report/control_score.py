"""How an arm moved: time to its final limits, changes, reversals, and how well it predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from paceline_wire.limits import Capacity
from tune_report.arms.arm import PERIOD_S
from tune_report.episode import Moment, PodRun
from tune_report.workloads import ReportWorkload

_NEAR = 0.1
_SKIPPED_STEPS = 500
_SETTLE_S = 60.0
_MAX_TARGET = 1.5  # times the SLA's: no step target above it keeps the SLA


@dataclass(frozen=True, slots=True)
class ControlScore:
    """How the first pod, which is there from beginning to end, was moved; None where unknown."""

    to_final_s: float | None
    """From cold until all limits stay within a tenth of where they end."""
    to_final_pace_s: float | None
    """The same for what paces a step: the token budget and the step target."""
    after_step_s: float | None
    """From the load's step until the same; None without a step."""
    changes: int
    """Changes of any limit."""
    changes_per_10_min: float
    """After the first minute."""
    reversals: int
    unsafe: int
    """Ticks with limits that no pod may hold, or a step target that cannot keep the SLA."""
    model_error: float | None
    """Mean absolute relative error of predicted step times after 500 steps."""
    coverage: float | None
    """Share of those steps within predicted * q_r."""
    verdicts: tuple[tuple[float, str], ...]
    """When SLAAchievable was what; only where it changed."""
    track: tuple[tuple[float, int, int, float | None, int, int], ...]
    """Time, batch, budget, step target, running, waiting after each tick."""
    device: tuple[tuple[float, str], ...] = ()
    """When DeviceHealthy was what; only where it changed."""


def control_score(workload: ReportWorkload, pods: Sequence[PodRun]) -> ControlScore | None:
    """Judge the movements; None for an arm that never moves."""
    moments = [m for m in pods[0].moments if m.at_s <= workload.duration_s]
    if not moments:
        return None
    held = [(m.batch, m.budget, m.target_ms) for m in moments]
    changes = [i for i in range(1, len(held)) if held[i] != held[i - 1]]
    late = [i for i in changes if moments[i].at_s > _SETTLE_S]
    minutes = (workload.duration_s - _SETTLE_S) / 60.0
    step = workload.step_at_s
    error, coverage = _model(pods[0], moments)
    return ControlScore(
        to_final_s=_to_final(moments, 0.0, step or workload.duration_s),
        to_final_pace_s=_to_final(moments, 0.0, step or workload.duration_s, with_batch=False),
        after_step_s=_to_final(moments, step, workload.duration_s) if step is not None else None,
        changes=len(changes),
        changes_per_10_min=10.0 * len(late) / minutes,
        reversals=_reversals([m.budget for m in moments]) + _reversals([m.batch for m in moments]),
        unsafe=sum(_is_unsafe(m, workload) for m in moments),
        model_error=error,
        coverage=coverage,
        verdicts=_changes_of([(m.at_s, m.verdict) for m in moments]),
        track=tuple(
            (m.at_s, m.batch, m.budget, m.target_ms, m.running, m.waiting) for m in moments
        ),
        device=_changes_of([(m.at_s, m.device) for m in moments]),
    )


def _to_final(
    moments: Sequence[Moment], start_s: float, end_s: float, *, with_batch: bool = True
) -> float | None:
    """Return the seconds until each limit stays near its median of the last minute."""
    stretch = [m for m in moments if start_s < m.at_s <= end_s]
    if not stretch:
        return None
    columns = [[float(m.budget) for m in stretch], [m.target_ms or np.nan for m in stretch]]
    if with_batch:
        columns.append([float(m.batch) for m in stretch])
    worst = 0
    for column in columns:
        values = np.array(column)
        final = float(np.median(values[-int(_SETTLE_S / PERIOD_S) :]))
        if np.isnan(final):
            continue
        away = np.flatnonzero(~(np.abs(values / final - 1) <= _NEAR))
        worst = max(worst, int(away[-1]) + 1 if len(away) else 0)
    # A change is made at a tick: the first tick of the stretch is one period after its start.
    return min(worst + 1, len(stretch)) * PERIOD_S


def _reversals(values: Sequence[int]) -> int:
    moves = [b - a for a, b in pairwise(values) if a != b]
    return sum(a * b < 0 for a, b in pairwise(moves))


def _is_unsafe(moment: Moment, workload: ReportWorkload) -> bool:
    capacity: Capacity = workload.setting.capacity
    target_ms = moment.target_ms
    sla = workload.sla_at(moment.at_s)
    promised_ms = sla.itl_p99_ms or sla.tpot_p99_ms or np.inf
    is_within = (
        1 <= moment.batch <= capacity.max_batch_size
        and moment.batch <= moment.budget <= capacity.max_token_budget
    )
    return not is_within or (
        target_ms is not None and not 0 < target_ms <= _MAX_TARGET * promised_ms
    )


def _model(pod: PodRun, moments: Sequence[Moment]) -> tuple[float | None, float | None]:
    """Error and coverage; q_r is the one in force at the tick before the step."""
    predicted, measured = pod.step_predicted_ms[_SKIPPED_STEPS:], pod.step_ms[_SKIPPED_STEPS:]
    known = predicted > 0
    if not known.any():
        return None, None
    ticks = np.array([m.at_s for m in moments])
    q_r = np.array([m.q_r for m in moments])
    at_s = pod.step_end_s[_SKIPPED_STEPS:][known] + pod.start_s
    place = np.clip(np.searchsorted(ticks, at_s) - 1, 0, len(ticks) - 1)
    ratio = measured[known] / predicted[known]
    return float(np.abs(1 / ratio - 1).mean()), float((ratio <= q_r[place]).mean())


def _changes_of(values: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    kept: list[tuple[float, str]] = []
    for at_s, value in values:
        if not kept or kept[-1][1] != value:
            kept.append((at_s, value))
    return tuple(kept)
