"""p99 over the max batch size from the committed sweep, with the tuner's own point."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.bench.measures import Latency, Measures
from paceline_cli.bench.sweep_points import Point, Sweep
from paceline_cli.plot_style import AFTER, FAINT, INK, plain_log_ticks, styled

_NAMES: Final = ("TTFT", "ITL", "E2E")
_STAR: Final = "#D55E00"


def draw_batch_sweep(sweep: Sweep, path: Path) -> None:
    """Draw the p99 of three latencies with its interval, the targets, the knee and the star."""
    points, chosen = sweep.along("batch_size"), sweep.chosen
    assert chosen is not None
    targets = {"TTFT": sweep.sla.ttft_p99_ms, "ITL": sweep.sla.itl_p99_ms}
    with styled():
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots(1, 3)
        figure.suptitle(
            "p99 over the max batch size, and where the tuner stood (measured, two CPU cores)",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        for axis, name in zip(axes, _NAMES, strict=True):
            values = _curve(axis, points, name)
            star = _p99(chosen.measured, name)
            axis.plot([chosen.batch_size], [star], "*", ms=15, color=_STAR, mec="white", zorder=5,
                      label=f"the tuner's: batch {chosen.batch_size},"
                      f" budget {chosen.token_budget}")  # fmt: skip
            target = targets.get(name)
            if target is not None:
                axis.axhline(target, color=INK, ls="--", lw=1, label="declared p99 target")
            _dress(axis, points, name, [*values, star, *([target] if target else [])])
            knee = sweep.knee("batch_size")
            if knee is not None:
                axis.axvline(knee.setting.place, color=FAINT, ls=":", lw=1.2,
                             label="knee: more brings no goodput")  # fmt: skip
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4,
                      frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _curve(axis: Any, points: Sequence[Point], name: str) -> list[float]:
    places = [point.setting.place for point in points]
    values = [_p99(point.measured, name) for point in points]
    budget = points[0].setting.token_budget
    axis.plot(places, values, "o-", color=AFTER, lw=2, ms=5, label=f"fixed, budget {budget:,}")
    for place, point in zip(places, points, strict=True):
        bounds = _latency(point.measured, name).at(0.99).ms
        if bounds.low is not None and bounds.high is not None:
            axis.vlines(place, bounds.low, bounds.high, color=AFTER, lw=1.2, alpha=0.7)
    return values


def _dress(axis: Any, points: Sequence[Point], name: str, values: list[float]) -> None:
    places = [point.setting.place for point in points]
    axis.set_title(f"{name} (ms)")
    axis.set_ylim(min(values) / 1.5, max(values) * 1.6)
    axis.set_yscale("log")
    plain_log_ticks(axis.yaxis, values)
    axis.set_xscale("log", base=2)
    axis.set_xlim(min(places) / 1.3, max(places) * 1.5)
    axis.xaxis.set_major_locator(FixedLocator(places))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.set_xlabel("max batch size")


def _latency(measured: Measures, name: str) -> Latency:
    return next(each for each in measured.latencies if each.name == name)


def _p99(measured: Measures, name: str) -> float:
    value = _latency(measured, name).at(0.99).ms.value
    assert value is not None
    return value
