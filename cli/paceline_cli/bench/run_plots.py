"""A run's plots: latencies as requests came, and their distributions beside the targets."""

import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from paceline_cli.bench.measures import NAMES
from paceline_cli.bench.trial import Trial
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled
from paceline_cli.traffic.client_span import whole_ms
from paceline_cli.traffic.record import ClientRecord, percentile
from paceline_tuner.service_spec import SLA

_TITLES: Final = {
    "TTFT": "Time to first token",
    "TPOT": "Time per output token",
    "ITL": "Inter-token latency",
    "E2E": "End to end",
}
_WINDOW_SHARE: Final = 0.15
"""Of the run: the stretch that a moving p99 looks back over."""
_NEAR: Final = 30.0
_DECADES: Final = 1e4
"""What lies further below the largest value is not drawn: gaps of pieces that came together."""


def over_time(trial: Trial, sla: SLA) -> Figure:
    """TTFT and ITL of each request at the time it was due, their moving p99, the targets."""
    zero = trial.records[0].planned_at if trial.records else trial.start_at
    with styled():
        figure = Figure(figsize=(9, 5.2), layout="constrained")
        axes = figure.subplots(2, 1, sharex=True)
        for axis, name, target in zip(
            axes, ("TTFT", "ITL"), (sla.ttft_p99_ms, sla.itl_p99_ms), strict=True
        ):
            points = [(one.planned_at - zero, ms) for one in trial.records for ms in of(name, one)]
            _moving(axis, points, trial.end_at - zero)
            values = [ms for _, ms in points]
            _target(axis, _near(target, values), is_horizontal=True)
            axis.set_title(f"{_TITLES[name]} by when the request was due (ms)")
            if trial.start_at > zero:
                axis.axvspan(0, trial.start_at - zero, color="#eeeeee", linewidth=0)
            shown = _with(values, _near(target, values))
            _log(axis.yaxis, shown, axis.set_yscale, axis.set_ylim)
        axes[0].plot([], [], "o", markersize=3, color=AFTER, alpha=0.35, label="one value")
        axes[0].plot([], [], color=BEFORE, linewidth=2, label="moving p99")
        figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=9)
        axes[-1].set_xlabel("seconds of traffic; the shaded warm-up is in no figure")
        axes[-1].set_xlim(0, max(trial.end_at - zero, 1e-3))
    return figure


def distributions(trial: Trial, sla: SLA) -> Figure:
    """The share of values within a latency, for each kind, after the warm-up."""
    counted = [
        one
        for one in trial.records
        if trial.start_at <= one.planned_at < trial.end_at and one.outcome != "cancelled"
    ]
    targets = (sla.ttft_p99_ms, sla.tpot_p99_ms, sla.itl_p99_ms, sla.e2e_p99_ms)
    with styled():
        figure = Figure(figsize=(9, 3.0), layout="constrained")
        axes = figure.subplots(1, len(NAMES), sharey=True)
        for axis, name, target in zip(axes, NAMES, targets, strict=True):
            values = sorted(ms for one in counted for ms in of(name, one))
            shares = [(place + 1) / len(values) for place in range(len(values))]
            finite = [(v, s) for v, s in zip(values, shares, strict=True) if v < math.inf]
            axis.step([v for v, _ in finite], [s for _, s in finite], where="post", color=AFTER,
                      linewidth=2)  # fmt: skip
            axis.axhline(0.99, color=FAINT, linewidth=0.8)
            _target(axis, _near(target, values), is_horizontal=False)
            axis.set_title(name)
            shown = _with(values, _near(target, values))
            _log(axis.xaxis, shown, axis.set_xscale, axis.set_xlim)
            axis.tick_params(axis="x", labelsize=8, rotation=45)
            axis.set_xlabel("ms")
            axis.set_ylim(0, 1.02)
        axes[0].set_ylabel("share within")
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    return figure


def of(name: str, record: ClientRecord) -> Sequence[float]:
    """The values that one request has of one latency."""
    if name == "ITL":
        return record.itls_ms
    if name == "TPOT":
        return () if record.tpot_ms is None else (record.tpot_ms,)
    if name == "TTFT":
        return (math.inf if record.ttft_ms is None else record.ttft_ms,)
    return (whole_ms(record),)


def moving_p99(
    points: Sequence[tuple[float, float]], end_s: float, *, steps: int = 80
) -> tuple[list[float], list[float | None]]:
    """The p99 of what was due within the last part of the run; None where nothing was."""
    window_s = _WINDOW_SHARE * end_s
    times = [end_s * (step + 1) / steps for step in range(steps)]
    found = [
        percentile((ms for at, ms in points if now - window_s < at <= now), 0.99) for now in times
    ]
    return times, found


def _moving(axis: Any, points: Sequence[tuple[float, float]], end_s: float) -> None:
    finite = [(at, ms) for at, ms in points if ms < math.inf]
    axis.plot(
        [at for at, _ in finite],
        [ms for _, ms in finite],
        "o",
        markersize=3,
        color=AFTER,
        alpha=0.35,
        markeredgewidth=0,
        rasterized=True,
    )
    at_s, p99_ms = moving_p99(points, end_s)
    axis.plot(at_s, [drawable(ms) for ms in p99_ms], color=BEFORE, linewidth=2)


def drawable(ms: float | None) -> float:
    """Leave a gap in a line where nothing was, or where it is infinite."""
    return math.nan if ms is None or math.isinf(ms) else ms


def _near(target: float | None, values: Sequence[float]) -> float | None:
    """The target, where it is near enough to be drawn beside the values."""
    finite = [value for value in values if value < math.inf]
    if target is None or not finite or not max(finite) / _NEAR < target < max(finite) * _NEAR:
        return None
    return target


def _with(values: Sequence[float], target: float | None) -> Sequence[float]:
    return values if target is None else [*values, target]


def _target(axis: Any, target: float | None, *, is_horizontal: bool) -> None:
    if target is None:
        return
    draw = axis.axhline if is_horizontal else axis.axvline
    draw(target, color=INK, linestyle="--", linewidth=1)
    text = f"target {target:,.0f}"
    if is_horizontal:
        axis.annotate(text, (1.0, target), xycoords=axis.get_yaxis_transform(), xytext=(0, 3),
                      textcoords="offset points", ha="right", fontsize=8.5)  # fmt: skip
    else:
        axis.annotate(text, (target, 0.03), xycoords=axis.get_xaxis_transform(), xytext=(-3, 0),
                      textcoords="offset points", ha="right", fontsize=8, rotation=90)  # fmt: skip


def _log(axis: Any, values: Sequence[float], set_scale: Any, set_limits: Any) -> None:
    finite = [value for value in values if 0 < value < math.inf]
    floor = max(finite, default=0.0) / _DECADES
    positive = [value for value in finite if value >= floor]
    if not positive:
        return
    set_limits(min(positive) / 1.3, max(positive) * 1.6)
    set_scale("log")
    plain_log_ticks(axis, positive)
