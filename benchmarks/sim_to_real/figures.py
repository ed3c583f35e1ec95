"""Figures of one run, counted in the same way for both engines, and their difference. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline_sim.hardware import Hardware
from paceline_tuner.latency_sketch import LatencySketch
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import Step
from sim_to_real.recording import Held, Recording
from sim_to_real.shape import told_ms


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Figures of one run, in milliseconds; nan where there is no value."""

    requests: int
    """That ended with all their tokens."""
    step_p50_ms: float
    step_p90_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    itl_p99_ms: float
    goodput_rps: float
    """Requests within the TTFT target whose mean token time is within the ITL target."""
    attainment: float
    """The lesser of the shares of requests within TTFT and of gaps within ITL."""
    batch: float
    """The limits that held at the end, as the median of the run's last third."""
    budget: float
    target_ms: float
    pacer_error: float
    """Mean absolute relative error of the pacer's own predictions of its steps."""
    pacer_coverage: float
    """Share of steps within prediction * q_r."""
    table_error: float
    """Mean absolute relative error of the profile's table on the steps that ran."""
    level: float
    """Median of measured over the table: how much slower the device was than in the profile."""


ERRORS = (
    "step_p50_ms",
    "step_p90_ms",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "itl_p99_ms",
    "goodput_rps",
)
"""RunFigures whose error is a ratio; of attainment and coverage it is a difference."""


def figures(recording: Recording, sla: SLA, hardware: Hardware, seconds: float) -> RunFigures:
    """Count one run of `seconds` of arrivals."""
    steps = [s for s in recording.steps if s.wall_ms > 0]
    wall = np.array([s.wall_ms for s in steps])
    table = told_ms(hardware, steps)
    ended = [r for r in recording.requests if r.outcome == "ok"]
    ttft = [r.ttft_ms for r in ended if r.ttft_ms is not None]
    tpot = [r.tpot_ms for r in ended if r.tpot_ms is not None]
    gaps = LatencySketch(recording.slices.values())
    ttft_limit, itl_limit = sla.ttft_p99_ms or math.inf, sla.itl_p99_ms or math.inf
    good = sum(
        r.ttft_ms is not None and r.ttft_ms <= ttft_limit and not (r.tpot_ms or 0.0) > itl_limit
        for r in ended
    )
    in_time = sum(value <= ttft_limit for value in ttft) / max(len(recording.requests), 1)
    in_pace = 1 - gaps.over(itl_limit) / gaps.count if gaps.count else 1.0
    error, coverage = _pacer(steps, recording.held)
    last = recording.held[-max(1, len(recording.held) // 3) :]
    return RunFigures(
        requests=len(ended),
        step_p50_ms=_quantile(wall, 0.5),
        step_p90_ms=_quantile(wall, 0.9),
        ttft_p50_ms=_quantile(ttft, 0.5),
        ttft_p99_ms=_quantile(ttft, 0.99),
        tpot_p50_ms=_quantile(tpot, 0.5),
        itl_p99_ms=_number(gaps.quantile(0.99)),
        goodput_rps=good / seconds,
        attainment=min(in_time, in_pace),
        batch=_quantile([h.batch for h in last], 0.5),
        budget=_quantile([h.budget for h in last], 0.5),
        target_ms=_quantile([h.target_ms for h in last if h.target_ms is not None], 0.5),
        pacer_error=error,
        pacer_coverage=coverage,
        table_error=float(np.mean(np.abs(table / wall - 1))) if len(wall) else math.nan,
        level=_quantile(wall / table, 0.5),
    )


def ratio(real: float, simulated: float) -> float:
    """Simulated over real, minus one; nan without both."""
    return simulated / real - 1 if real else math.nan


def _pacer(steps: Sequence[Step], held: Sequence[Held]) -> tuple[float, float]:
    """Return error and coverage, by the last q_r reported before each step."""
    known = [s for s in steps if s.predicted_ms > 0 and s.clean]
    if not known or not held:
        return math.nan, math.nan
    told_at = np.array([h.at for h in held])
    q_r = np.array([h.q_r for h in held])
    at = np.array([s.at for s in known])
    place = np.clip(np.searchsorted(told_at, at) - 1, 0, len(held) - 1)
    measured = np.array([s.wall_ms for s in known])
    predicted = np.array([s.predicted_ms for s in known])
    error = float(np.mean(np.abs(predicted / measured - 1)))
    return error, float(np.mean(measured <= predicted * q_r[place]))


def _quantile(values: Sequence[float] | npt.NDArray[np.float64], q: float) -> float:
    """Return the nearest rank, as the operator does; nan without values."""
    if not len(values):
        return math.nan
    return float(np.quantile(np.asarray(values, np.float64), q, method="inverted_cdf"))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
