"""The demo's plots."""

import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from paceline_cli.demo.demo_run import DemoRun, rolling_p99
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled

_WINDOW_S: Final = 10.0
_STEP_S: Final = 1.0
_HEADROOM: Final = 1.3
"""Above the highest value, for the labels."""


def over_time(run: DemoRun) -> Figure:
    """Rolling p99 of each target, and both limits, on one time axis."""
    panels = _p99_panels(run)
    with styled():
        figure = Figure(figsize=(9, 1.9 * len(panels) + 2.6), layout="constrained")
        axes = figure.subplots(len(panels) + 1, 1, sharex=True)
        for axis, (name, target, points) in zip(axes, panels, strict=False):
            _p99_panel(axis, run, name, target, points)
        _limits_panel(axes[-1], run)
        for axis in axes:
            axis.axvline(run.border_at - run.start_at, color=INK, linewidth=1)
            axis.set_xlim(0, run.end_at - run.start_at)
        axes[-1].set_xlabel("seconds of traffic")
        top = axes[0]
        border = run.border_at - run.start_at
        for at, text, color, align in (
            (border - 1, "limits as declared", BEFORE, "right"),
            (border + 1, "tuner on", AFTER, "left"),
        ):
            top.text(
                at, 1.0, text, color=color, ha=align, va="top", transform=top.get_xaxis_transform()
            )
    return figure


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


def _p99_panels(run: DemoRun) -> list[tuple[str, float | None, list[tuple[float, float]]]]:
    gaps = [
        (at, ms)
        for record in run.records
        for at, ms in zip(record.token_ats[1:], record.itls_ms, strict=True)
    ]
    firsts = [
        (record.token_ats[0], ms) for record in run.records if (ms := record.ttft_ms) is not None
    ]
    means = [
        (record.token_ats[-1], ms) for record in run.records if (ms := record.tpot_ms) is not None
    ]
    panels = [
        ("Inter-token latency", run.sla.itl_p99_ms, gaps),
        ("Time per output token", run.sla.tpot_p99_ms, means),
        ("Time to first token", run.sla.ttft_p99_ms, firsts),
    ]
    return [panel for panel in panels if panel[1] is not None]


def _p99_panel(
    axis: Any, run: DemoRun, name: str, target: float | None, points: Sequence[tuple[float, float]]
) -> None:
    series = rolling_p99(
        points, start=run.start_at, end=run.end_at, window_s=_WINDOW_S, step_s=_STEP_S
    )
    for color, first, last in (
        (BEFORE, run.start_at, run.border_at),
        (AFTER, run.border_at, run.end_at),
    ):
        shown = [(at - run.start_at, ms) for at, ms in series if first <= at <= last]
        axis.plot(
            [at for at, _ in shown],
            [math.nan if ms is None else ms for _, ms in shown],
            color=color,
            linewidth=2,
        )
    axis.set_title(f"{name}, p99 of the last {_WINDOW_S:.0f} s (ms)")
    highest = max([target or 0.0, *(ms for _, ms in series if ms is not None)], default=1.0)
    axis.set_ylim(0, highest * _HEADROOM)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if target is not None:
        axis.axhline(target, color=INK, linestyle="--", linewidth=1)
        axis.annotate(
            f"target {target:,.0f} ms",
            (1.0, target),
            xycoords=axis.get_yaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=9,
        )


def _limits_panel(axis: Any, run: DemoRun) -> None:
    times = [sample.at - run.start_at for sample in run.samples]
    lines: tuple[tuple[str, str, list[int | None]], ...] = (
        ("token budget", INK, [sample.token_budget for sample in run.samples]),
        ("max batch size", FAINT, [sample.batch_size for sample in run.samples]),
    )
    end = run.end_at - run.start_at
    values: list[float] = []
    for label, color, limits in lines:
        known = [(at, value) for at, value in zip(times, limits, strict=True) if value]
        if not known:  # no telemetry yet
            continue
        values += [value for _, value in known]
        # The last value holds until the end; the first held before traffic began.
        xs = [0.0, *(max(at, 0.0) for at, _ in known), end]
        ys = [known[0][1], *(value for _, value in known), known[-1][1]]
        axis.step(xs, ys, where="post", color=color, linewidth=2)
        axis.annotate(
            f"{label} {ys[-1]:,}",
            (end, ys[-1]),
            xytext=(0, 4),
            textcoords="offset points",
            ha="right",
            color=color,
        )
    axis.set_yscale("log", base=2)
    if values:
        axis.set_ylim(min(values) / 1.6, max(values) * 1.9)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.set_title("Limits: tokens in one step, running sequences")


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
