"""p99 over one limit from the committed sweep, with the tuner's own point."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.bench.grid import Axis
from paceline_cli.bench.measures import Latency, Measures
from paceline_cli.bench.sweep_points import Point, Sweep
from paceline_cli.plot_style import AFTER, FAINT, INK, styled

STAR: Final = "#D55E00"
_LIMITS: Final[dict[Axis, str]] = {
    "batch_size": "max batch size",
    "token_budget": "token budget (tokens a step)",
}
_WHAT: Final = {
    "TTFT": "Time to first token (s)",
    "ITL": "Gap between tokens (s)",
    "E2E": "Whole answer (s)",
}


def draw_sweep(sweep: Sweep, limit: Axis, names: Sequence[str], title: str, path: Path) -> None:
    """Draw the p99 of each named latency with its interval, the targets, the knee and the star.

    All panels span the same ratio, so that lines of one slope grow alike.
    """
    points = sweep.along(limit)
    targets_s = {
        name: ms / 1e3
        for name, ms in (("TTFT", sweep.sla.ttft_p99_ms), ("ITL", sweep.sla.itl_p99_ms))
        if ms is not None
    }
    with styled():
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axes = figure.subplots(1, len(names))
        figure.suptitle(f"{title}\n(p99, measured, two CPU cores)", x=0.01, ha="left", fontsize=12,
                        fontweight="bold")  # fmt: skip
        ranges = {
            name: _range([*(p99_s(p.measured, name) for p in points), _star_s(sweep, name)],
                         targets_s.get(name))
            for name in names
        }  # fmt: skip
        ratio = max(high / low for low, high in ranges.values())
        for axis, name in zip(axes, names, strict=True):
            draw_curve(axis, points, name, _held(points[0], limit))
            _draw_star(axis, sweep, limit, name)
            if name in targets_s:
                axis.axhline(targets_s[name], color=INK, ls="--", lw=1, label="declared p99 target")
            low, high = ranges[name]
            middle = (low * high) ** 0.5
            span_seconds(axis, middle / ratio**0.5, middle * ratio**0.5)
            axis.set_title(_WHAT[name])
            dress_limit(axis, [point.setting.place for point in points])
            axis.set_xlabel(_LIMITS[limit])
            _draw_knee(axis, sweep, limit)
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4,
                      frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _range(values: Sequence[float], target_s: float | None) -> tuple[float, float]:
    """Return the ends of what a panel must show."""
    shown = [*values, *([] if target_s is None else [target_s])]
    return min(shown) / 2.2, max(shown) * 1.6


def draw_curve(axis: Any, points: Sequence[Point], name: str, label: str) -> None:
    """Draw the measured p99 over the limit, in seconds, with its interval."""
    places = [point.setting.place for point in points]
    values = [p99_s(point.measured, name) for point in points]
    axis.plot(places, values, "o-", color=AFTER, lw=2, ms=5, label=label)
    for place, point in zip(places, points, strict=True):
        bounds = _latency(point.measured, name).at(0.99).ms
        if bounds.low is not None and bounds.high is not None:
            axis.vlines(place, bounds.low / 1e3, bounds.high / 1e3, color=AFTER, lw=1.2, alpha=0.7)


def _draw_star(axis: Any, sweep: Sweep, limit: Axis, name: str) -> None:
    """Draw the tuner's own point, and beside it the limit that this picture has no axis for."""
    chosen = sweep.chosen
    assert chosen is not None
    if limit == "batch_size":
        place, other, align = chosen.batch_size, f"budget {chosen.token_budget}", "right"
    else:
        place, other, align = chosen.token_budget, f"batch {chosen.batch_size}", "left"
    axis.plot([place], [_star_s(sweep, name)], "*", ms=15, color=STAR, mec="white", zorder=5,
              ls="none", label="where the tuner stood")  # fmt: skip
    axis.annotate(other, (place, _star_s(sweep, name)), xytext=(8, -18),
                  textcoords="offset points", ha=align, fontsize=9, color=STAR)  # fmt: skip


def _draw_knee(axis: Any, sweep: Sweep, limit: Axis) -> None:
    """Mark the knee, except at the least value, where nothing lies before it."""
    knee, least = sweep.knee(limit), sweep.along(limit)[0]
    if knee is not None and knee.setting.place != least.setting.place:
        axis.axvline(knee.setting.place, color=FAINT, ls=":", lw=1.2,
                     label="knee: more brings no goodput")  # fmt: skip


def _held(point: Point, limit: Axis) -> str:
    """Name the limit that every point has alike."""
    if limit == "batch_size":
        return f"fixed, budget {point.setting.token_budget:,}"
    return f"fixed, batch {point.setting.batch_size:,}"


def span_seconds(axis: Any, low: float, high: float) -> None:
    """Give a panel a logarithmic axis of seconds with 0.01, 0.03, 0.1, …."""
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    ticks = [step * 10.0**power for power in range(-3, 3) for step in (1, 3)]
    axis.yaxis.set_major_locator(FixedLocator(ticks))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def dress_limit(axis: Any, places: Sequence[int]) -> None:
    """Give a panel an axis of the limit with a tick for each measured value."""
    axis.set_xscale("log", base=2)
    axis.set_xlim(min(places) / 1.4, max(places) * 1.8)
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _star_s(sweep: Sweep, name: str) -> float:
    assert sweep.chosen is not None
    return p99_s(sweep.chosen.measured, name)


def _latency(measured: Measures, name: str) -> Latency:
    return next(each for each in measured.latencies if each.name == name)


def p99_s(measured: Measures, name: str) -> float:
    """Return the p99 in seconds."""
    value = _latency(measured, name).at(0.99).ms.value
    assert value is not None
    return value / 1e3
