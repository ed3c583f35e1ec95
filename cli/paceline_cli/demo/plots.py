"""The demo's plots."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from paceline_cli.demo.demo_run import DemoRun
from paceline_cli.demo.series import WINDOW_S, DemoSeries, LatencySeries
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled

_HEADROOM: Final = 1.3
"""Above the highest value, for the labels."""
_WHOLE_S: Final = 10.0
"""From here on seconds need no decimals."""


def over_time(series: DemoSeries) -> Figure:
    """Moving p99 of each latency with a target, and both limits, on one time axis."""
    panels = series.latencies
    with styled():
        figure = Figure(figsize=(9, 1.9 * len(panels) + 3.0), layout="constrained")
        figure.suptitle(_message(series), x=0.01, ha="left", fontsize=12, fontweight="bold")
        axes = figure.subplots(len(panels) + 1, 1, sharex=True)
        for axis, panel in zip(axes, panels, strict=False):
            _p99_panel(axis, series, panel)
        _limits_panel(axes[-1], series)
        for axis in axes:
            axis.axvline(series.border_s, color=INK, linewidth=1)
            axis.set_xlim(0, series.end_s)
        axes[-1].set_xlabel("seconds of traffic")
        top = axes[0]
        for at, text, color, align in (
            (series.border_s - 1, "limits as declared", BEFORE, "right"),
            (series.border_s + 1, "tuner on", AFTER, "left"),
        ):
            top.text(
                at, 1.0, text, color=color, ha=align, va="top", transform=top.get_xaxis_transform()
            )
    return figure


def save_over_time(series: DemoSeries, path: Path) -> None:
    """Write that plot as a PNG; the same series gives the same bytes."""
    over_time(series).savefig(path, dpi=160, metadata={"Software": None})


def _message(series: DemoSeries) -> str:
    """Say what became of the first latency: 1.4 s -> 0.42 s."""
    measured = f"(measured, {series.machine})"
    if not series.latencies:
        return f"Limits over time\n{measured}"
    first = series.latencies[0]
    spans = " → ".join(_seconds(ms) for ms in (first.before_ms, first.after_ms))
    return f"p99 of the {first.name}: {spans}, target {_seconds(first.target_ms)}\n{measured}"


def _seconds(ms: float | None) -> str:
    """Write a latency with two figures: 0.42 s, 15 s."""
    if ms is None or math.isinf(ms):
        return "none"
    return f"{ms / 1e3:,.0f} s" if ms >= 1e3 * _WHOLE_S else f"{ms / 1e3:.2g} s"


def distributions(run: DemoRun) -> Figure:
    """Share of values within a latency, before and after, for TTFT, TPOT and ITL."""
    before, after = run.before(), run.after()
    panels = (
        ("TTFT", run.sla.ttft_p99_ms, before.ttft_ms, after.ttft_ms),
        ("TPOT", run.sla.tpot_p99_ms, before.tpot_ms, after.tpot_ms),
        ("ITL", run.sla.itl_p99_ms, before.itl_ms, after.itl_ms),
    )
    with styled():
        figure = Figure(figsize=(9, 3.2), layout="constrained")
        axes = figure.subplots(1, len(panels), sharey=True)
        for axis, (name, target, *spans) in zip(axes, panels, strict=True):
            for values, color in zip(spans, (BEFORE, AFTER), strict=True):
                _ecdf(axis, values, color)
            if target is not None:
                axis.axvline(target, color=INK, linestyle="--", linewidth=1)
                axis.text(
                    target, 0.02, f" p99 target\n {target:,.0f} ms", va="bottom", fontsize=8.5
                )
            axis.set_title(name)
            axis.set_xscale("log")
            plain_log_ticks(axis.xaxis, [value for values in spans for value in values])
            axis.set_xlabel("milliseconds")
            axis.set_ylim(0, 1.0)
        axes[0].set_ylabel("share within")
        axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        handles = [
            Line2D([], [], color=color, label=label)
            for color, label in ((BEFORE, "before"), (AFTER, "after"))
        ]
        axes[-1].legend(handles=handles, frameon=False, loc="center right")
    return figure


def _p99_panel(axis: Any, series: DemoSeries, panel: LatencySeries) -> None:
    values = [math.nan if ms is None else ms / 1e3 for ms in panel.p99_ms]
    for color, first, last in (
        (BEFORE, 0.0, series.border_s),
        (AFTER, series.border_s, series.end_s),
    ):
        shown = [(at, s) for at, s in zip(series.at_s, values, strict=True) if first <= at <= last]
        axis.plot([at for at, _ in shown], [s for _, s in shown], color=color, linewidth=2)
    axis.set_title(f"{panel.name[0].upper()}{panel.name[1:]}: p99 of the last {WINDOW_S:.0f} s (s)")
    target_s = panel.target_ms / 1e3
    axis.set_ylim(0, _HEADROOM * max([target_s, *(s for s in values if not math.isnan(s))]))
    axis.axhline(target_s, color=INK, linestyle="--", linewidth=1)
    axis.annotate(
        f"target {_seconds(panel.target_ms)}",
        (1.0, target_s),
        xycoords=axis.get_yaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )


def _limits_panel(axis: Any, series: DemoSeries) -> None:
    lines: tuple[tuple[str, str, list[int | None]], ...] = (
        ("token budget", INK, series.token_budget),
        ("max batch size", FAINT, series.batch_size),
    )
    shown: list[int] = []
    moved: list[str] = []
    for label, color, limits in lines:
        known = [(at, value) for at, value in zip(series.limits_at_s, limits, strict=True) if value]
        if not known:  # no telemetry yet
            continue
        # The last value holds until the end; the first held before traffic began.
        xs = [0.0, *(max(at, 0.0) for at, _ in known), series.end_s]
        ys = [known[0][1], *(value for _, value in known), known[-1][1]]
        shown += ys
        axis.step(xs, ys, where="post", color=color, linewidth=2)
        if len(set(ys)) > 1:
            moved.append(label)
            said = f"{label} {ys[0]:,} → {ys[-1]:,}"
        else:
            said = f"{label} {ys[-1]:,}: not moved"
        axis.annotate(
            said,
            (series.end_s, ys[-1]),
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            color=color,
        )
    axis.set_yscale("log", base=2)
    if shown:
        axis.set_ylim(min(shown) / 1.6, max(shown) * 1.9)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_minor_locator(NullLocator())
    only = f"; only the {moved[0]} moved" if len(moved) == 1 else ""
    axis.set_title(f"Limits: tokens in one step, running sequences{only}")


def _ecdf(axis: Any, values: Sequence[float], color: str) -> None:
    if not values:
        return
    ordered = sorted(values)
    shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
    finite = [
        (value, share) for value, share in zip(ordered, shares, strict=True) if value < math.inf
    ]
    axis.step(
        [v for v, _ in finite],
        [s for _, s in finite],
        where="post",
        color=color,
        linewidth=2,
    )
