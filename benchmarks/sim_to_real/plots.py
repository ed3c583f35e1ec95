"""The page's plots."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled
from sim_to_real.figures import RunFigures
from sim_to_real.spread import Spread

_SIDES: Final = (
    ("real", INK, "-"),
    ("simulated, as profiled", AFTER, ":"),
    ("simulated, at the run's speed", AFTER, "-"),
)
_SHOWN: Final = {
    "step_p50_ms": ("step p50", "o", INK),
    "step_p90_ms": ("step p90", "s", INK),
    "ttft_p50_ms": ("TTFT p50", "o", AFTER),
    "ttft_p99_ms": ("TTFT p99", "s", AFTER),
    "tpot_p50_ms": ("TPOT p50", "o", BEFORE),
    "itl_p99_ms": ("ITL p99", "s", BEFORE),
}
_BAND: Final = 0.25


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """The figures of one run on the real engine, and of the same on the simulated one."""

    name: str
    """Its load and limits."""
    real: RunFigures
    simulated: RunFigures
    levelled: RunFigures
    """Simulated, at the run's speed."""


def draw_figures(runs: Sequence[ComparedRun], machine: str, path: Path) -> None:
    """Draw one point for each run and figure; on the line both engines agree."""
    sides = {
        "as profiled": [(run.name, run.real, run.simulated) for run in runs],
        "at the run's speed": [(run.name, run.real, run.levelled) for run in runs],
    }
    values = [
        getattr(one, name)
        for pairs in sides.values()
        for _, *both in pairs
        for one in both
        for name in _SHOWN
    ]
    seen = [value for value in values if value > 0]
    counts = []
    with styled():
        figure = Figure(figsize=(9.5, 5.6))
        figure.set_layout_engine("constrained", h_pad=0.1)
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        line = np.array([min(seen) / 1.5, max(seen) * 1.5])
        for axes, (side, pairs) in zip(panels, sides.items(), strict=True):
            near = _points(axes, pairs)
            counts.append(near)
            axes.plot(line, line, color=FAINT, lw=0.8, zorder=0)
            axes.fill_between(line, line * (1 - _BAND), line * (1 + _BAND), color=FAINT,
                              alpha=0.15, lw=0)  # fmt: skip
            axes.annotate(f"band: within {_BAND:.0%}".replace("%", " %"), (0.03, 0.93),
                          xycoords="axes fraction", fontsize=9, color=FAINT)  # fmt: skip
            axes.set(xscale="log", yscale="log", xlim=tuple(line), ylim=tuple(line))
            axes.set_aspect("equal")
            axes.set_xlabel("real (ms)")
            axes.set_title(f"{side}: {near[0]} of {near[1]} in the band", fontsize=10)
            plain_log_ticks(axes.xaxis, seen)
            plain_log_ticks(axes.yaxis, seen)
        panels[0].set_ylabel("simulated (ms)")
        inside, total = counts[-1]
        _title(figure, f"The simulator is within 25 % of the real engine in {inside} of {total}"
                       f" figures (measured, {machine})")  # fmt: skip
        figure.legend(handles=panels[0].get_legend_handles_labels()[0], loc="outside lower left",
                      ncols=6, frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _points(axes: Any, pairs: Sequence[tuple[str, RunFigures, RunFigures]]) -> tuple[int, int]:
    """Draw all points and name those outside the band; return how many are in it, and all."""
    inside = total = 0
    for name, (label, mark, color) in _SHOWN.items():
        points = [(run, getattr(real, name), getattr(other, name)) for run, real, other in pairs]
        known = [point for point in points if point[1] > 0 and point[2] > 0]
        across, up = [real for _, real, _ in known], [other for _, _, other in known]
        axes.plot(across, up, mark, color=color, ms=5, alpha=0.7, mew=0, label=label)
        far = [point for point in known if abs(point[2] / point[1] - 1) > _BAND]
        total += len(known)
        inside += len(known) - len(far)
        if far:
            words = "\n".join([label, *(run for run, _, _ in far)])
            right = max(real for _, real, _ in far)
            low = min(other for _, _, other in far)
            axes.annotate(words, (right, low), xytext=(8, 0), textcoords="offset points",
                          va="center", fontsize=9, color=color)  # fmt: skip
    return inside, total


def draw_spread(runs: Sequence[Spread], machine: str, path: Path) -> None:
    """Draw how step times and first tokens spread in two runs: the nearest and the farthest."""
    ordered = sorted(runs, key=lambda run: run.distance)
    shown = {"nearest": ordered[0], "farthest": ordered[-1]}
    with styled():
        figure = Figure(figsize=(9.5, 6.2), layout="constrained")
        rows = figure.subplots(2, 2, sharex="col", sharey=True)
        for (left, right), (place, run) in zip(rows, shown.items(), strict=True):
            _shares(left, run.step_ms)
            _shares(right, run.ttft_ms)
            left.set_title(f"{place} of {len(runs)} runs: {run.load}, {run.mode}", fontsize=10)
            right.set_title(f"{100 * run.distance:.0f} % apart on average", fontsize=10,
                            fontweight="normal")  # fmt: skip
            left.set_ylabel("share of steps\nup to this time")
            right.set_ylabel("share of first tokens\nup to this time")
        for axes, what in zip(rows[-1], ("step_ms", "ttft_ms"), strict=True):
            plain_log_ticks(axes.xaxis, [
                value for run in shown.values() for side in getattr(run, what) for value in side
            ])  # fmt: skip
        rows[-1][0].set_xlabel("time of a step (ms)")
        rows[-1][1].set_xlabel("time to first token (ms)")
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower left", ncols=3,
                      frameon=False, fontsize=9)  # fmt: skip
        near, far = (round(100 * run.distance) for run in shown.values())
        _title(figure, f"Simulated times are {near} to {far} % from the real ones"
                       f" (measured, {machine})")  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _shares(axes: Any, sides: Sequence[Sequence[float]]) -> None:
    for values, (label, color, dash) in zip(sides, _SIDES, strict=True):
        share = np.linspace(0, 100, len(values))
        axes.plot(values, share, color=color, ls=dash, lw=2, label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:.0f} %")


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")
