"""A comparison's charts: goodput over load, and p99 over time."""

import math
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from paceline_cli.bench.comparison import Comparison
from paceline_cli.bench.run_plots import drawable
from paceline_cli.bench.run_report import target_ms
from paceline_cli.bench.sweep_points import worth
from paceline_cli.plot_style import FAINT, INK, plain_log_ticks, styled

_LOOKS: Final = (
    ("#D55E00", "--"),
    ("#CC79A7", ":"),
    ("#E69F00", "-."),
    ("#56B4E9", "-"),
    ("#0072B2", "-"),
)
"""The colour and line of each arm: every eye tells the colours apart (Okabe and Ito)."""


def goodput_over_load(comparison: Comparison) -> Figure:
    """Goodput and its interval over the load, one line for each way of batching."""
    has_targets = any(f.measured.goodput_rps.value is not None for f in comparison.found)
    with styled():
        figure = Figure(figsize=(9, 4), layout="constrained")
        axis = figure.subplots()
        top = 1.0
        for arm, (color, line) in zip(comparison.arms, _LOOKS, strict=False):
            found = sorted((f for f in comparison.found if f.arm == arm), key=lambda f: f.load)
            estimates = [worth(f.measured) for f in found]
            xs, ys = [f.load for f in found], [e.value or 0.0 for e in estimates]
            axis.plot(xs, ys, color=color, linestyle=line, marker="o", linewidth=2, label=arm)
            for x, each in zip(xs, estimates, strict=True):
                if each.low is not None and each.high is not None:
                    axis.vlines(x, each.low, each.high, color=color, linewidth=1)
                    top = max(top, each.high)
        axis.set_ylim(0, top * 1.1)
        axis.xaxis.set_major_locator(FixedLocator(sorted({f.load for f in comparison.found})))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_xlabel("load, as a multiple of the rate")
        axis.set_title(
            "Goodput: output tokens/s within every target" if has_targets else "Output tokens/s"
        )
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def p99_over_time(comparison: Comparison) -> Figure:
    """Moving p99s of TTFT and ITL at the load nearest to 1, with the targets.

    Requests without an answer are marks at the upper edge.
    """
    series = comparison.series
    loads = sorted({each.load for each in series}, key=lambda load: abs(load - 1))
    with styled():
        figure = Figure(figsize=(9, 5.2), layout="constrained")
        axes = figure.subplots(2, 1, sharex=True)
        for axis, name in zip(axes, ("TTFT", "ITL"), strict=True):
            shown: list[float] = []
            for arm, (color, line) in zip(comparison.arms, _LOOKS, strict=False):
                for each in series:
                    if each.arm == arm and each.load == loads[0]:
                        xs, ys = each.by_name[name]
                        label = arm if name == "TTFT" else None
                        drawn = [drawable(y) for y in ys]
                        axis.plot(
                            xs, drawn, color=color, linestyle=line, linewidth=1.8, label=label
                        )
                        shown += [y for y in drawn if y > 0]
                        lost = [x for x, y in zip(xs, ys, strict=True) if y == math.inf]
                        axis.plot(
                            lost, [0.97] * len(lost), "^", markersize=4, color=color,
                            transform=axis.get_xaxis_transform(),
                        )  # fmt: skip
            _target(axis, target_ms(comparison.sla, name))
            axis.set_title(f"{name}, moving p99 (ms)")
            if shown:
                axis.set_ylim(min(shown) / 1.3, max(shown) * 1.6)
                axis.set_yscale("log")
                plain_log_ticks(axis.yaxis, shown)
        if loads:
            axes[-1].set_xlabel(f"seconds after the warm-up, at load {loads[0]:g}")
        figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _target(axis: Any, target: float | None) -> None:
    if target is None:
        return
    axis.axhline(target, color=INK, linestyle="--", linewidth=1)
    text = axis.annotate(f"target {target:,.0f}", (1.0, target),
                         xycoords=axis.get_yaxis_transform(), xytext=(0, 3),
                         textcoords="offset points", ha="right", fontsize=8.5,
                         color=FAINT)  # fmt: skip
    text.set_in_layout(False)
