"""p99 over one limit from the committed sweep, with the tuner's own point."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.bench.grid import Axis
from paceline_cli.bench.measures import Latency, Measures
from paceline_cli.bench.sweep_points import Point, Sweep
from paceline_cli.plot_style import AFTER, FAINT, INK, plain_log_ticks, styled

_STAR: Final = "#D55E00"
_LIMITS: Final[dict[Axis, str]] = {
    "batch_size": "max batch size",
    "token_budget": "token budget (tokens a step)",
}


def draw_sweep(sweep: Sweep, limit: Axis, names: Sequence[str], title: str, path: Path) -> None:
    """Draw the p99 of each named latency with its interval, the targets, the knee and the star."""
    points, chosen = sweep.along(limit), sweep.chosen
    assert chosen is not None
    targets = {"TTFT": sweep.sla.ttft_p99_ms, "ITL": sweep.sla.itl_p99_ms}
    chosen_place = chosen.batch_size if limit == "batch_size" else chosen.token_budget
    with styled():
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots(1, len(names))
        figure.suptitle(f"{title} (measured, two CPU cores)", x=0.01, ha="left", fontsize=12,
                        fontweight="bold")  # fmt: skip
        for axis, name in zip(axes, names, strict=True):
            values = _curve(axis, points, name, _held(points[0], limit))
            star = _p99(chosen.measured, name)
            axis.plot([chosen_place], [star], "*", ms=15, color=_STAR, mec="white", zorder=5,
                      ls="none", label=f"the tuner's: batch {chosen.batch_size},"
                      f" budget {chosen.token_budget}")  # fmt: skip
            target = targets.get(name)
            if target is not None:
                axis.axhline(target, color=INK, ls="--", lw=1, label="declared p99 target")
            _dress(axis, points, limit, name, [*values, star, *([target] if target else [])])
            knee = sweep.knee(limit)
            if knee is not None:
                axis.axvline(knee.setting.place, color=FAINT, ls=":", lw=1.2,
                             label="knee: more brings no goodput")  # fmt: skip
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4,
                      frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _curve(axis: Any, points: Sequence[Point], name: str, held: str) -> list[float]:
    places = [point.setting.place for point in points]
    values = [_p99(point.measured, name) for point in points]
    axis.plot(places, values, "o-", color=AFTER, lw=2, ms=5, label=held)
    for place, point in zip(places, points, strict=True):
        bounds = _latency(point.measured, name).at(0.99).ms
        if bounds.low is not None and bounds.high is not None:
            axis.vlines(place, bounds.low, bounds.high, color=AFTER, lw=1.2, alpha=0.7)
    return values


def _held(point: Point, limit: Axis) -> str:
    """Name the limit that every point has alike."""
    if limit == "batch_size":
        return f"fixed, budget {point.setting.token_budget:,}"
    return f"fixed, batch {point.setting.batch_size:,}"


def _dress(axis: Any, points: Sequence[Point], limit: Axis, name: str, values: list[float]) -> None:
    places = [point.setting.place for point in points]
    axis.set_title(f"{name} (ms)")
    axis.set_ylim(min(values) / 1.5, max(values) * 1.6)
    axis.set_yscale("log")
    plain_log_ticks(axis.yaxis, values)
    axis.set_xscale("log", base=2)
    axis.set_xlim(min(places) / 1.3, max(places) * 1.5)
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_xlabel(_LIMITS[limit])


def _latency(measured: Measures, name: str) -> Latency:
    return next(each for each in measured.latencies if each.name == name)


def _p99(measured: Measures, name: str) -> float:
    value = _latency(measured, name).at(0.99).ms.value
    assert value is not None
    return value
