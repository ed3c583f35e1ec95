"""The page's plots."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sim_to_real.figures import RunFigures
from sim_to_real.measure import Measured, Triple

_SIDES = (
    ("real", "#333333", "-"),
    ("simulated", "#1b9e77", ":"),
    ("at the run's speed", "#1b9e77", "-"),
)
_SHOWN = {
    "step_p50_ms": "step p50",
    "step_p90_ms": "step p90",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p99_ms": "TTFT p99",
    "tpot_p50_ms": "TPOT p50",
    "itl_p99_ms": "ITL p99",
}


def draw(measured: Measured, folder: Path) -> None:
    """Write figures.png and spread.png."""
    folder.mkdir(parents=True, exist_ok=True)
    mpl.use("Agg")
    draw_figures([(p.real, p.simulated, p.levelled) for p in measured.played], folder)
    _spread(measured, folder / "spread.png")


def draw_figures(played: Sequence[tuple[RunFigures, RunFigures, RunFigures]], folder: Path) -> None:
    """Write figures.png: one point for each run and figure; on the line both engines agree.

    `played` has, for each run, the figures of the real engine, of the simulated one, and of the
    simulated one at the run's speed.
    """
    mpl.use("Agg")
    figure, panels = plt.subplots(1, 2, figsize=(10, 5), sharex=True, sharey=True, layout="tight")
    sides = {"as profiled": [simulated for _, simulated, _ in played]}
    sides["at the run's speed"] = [levelled for _, _, levelled in played]
    seen: list[float] = []
    for axes, (title, simulated) in zip(panels, sides.items(), strict=True):
        for name, label in _SHOWN.items():
            real = [getattr(one, name) for one, _, _ in played]
            other = [getattr(one, name) for one in simulated]
            axes.scatter(real, other, s=16, alpha=0.7, label=label)
            seen += [value for value in (*real, *other) if value > 0]
        axes.set(xlabel="real, ms", ylabel="simulated, ms", xscale="log", yscale="log")
        axes.set_title(f"{title}; the band is a quarter to either side", fontsize=9)
    line = np.array([min(seen) / 1.5, max(seen) * 1.5])
    for axes in panels:
        axes.plot(line, line, color="black", lw=0.8)
        axes.fill_between(line, line / 1.25, line * 1.25, color="black", alpha=0.08)
        axes.set(xlim=tuple(line), ylim=tuple(line))
        _plain_ticks(axes, both=True)
    panels[0].legend(fontsize=8)
    figure.savefig(folder / "figures.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


def _spread(measured: Measured, path: Path) -> None:
    """Plot the distributions of step times and first tokens, for every repeat of a load."""
    keys = list(dict.fromkeys((p.load, p.mode) for p in measured.played))
    figure, rows = plt.subplots(
        len(keys),
        2,
        figsize=(9, 1.7 * len(keys) + 0.6),
        sharex="col",
        squeeze=False,
        layout="constrained",
    )
    for panels, (load, mode) in zip(rows, keys, strict=True):
        played = [p for p in measured.played if (p.load, p.mode) == (load, mode)]
        _shares(panels[0], [p.step_ms for p in played])
        _shares(panels[1], [p.ttft_ms for p in played])
        panels[0].set_title(f"{load}, {mode}: steps", fontsize=8)
        panels[1].set_title("first tokens", fontsize=8)
    for axes in rows[-1]:
        axes.set_xlabel("milliseconds")
        _plain_ticks(axes)
    rows[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _shares(axes: Axes, runs: Sequence[Triple]) -> None:
    for side, (label, colour, dash) in enumerate(_SIDES):
        for index, triple in enumerate(runs):
            values = np.sort(np.array(triple[side]))
            share = np.arange(1, len(values) + 1) / max(len(values), 1)
            name = label if index == 0 else "_again"
            axes.step(
                values, share, where="post", color=colour, ls=dash, lw=1, alpha=0.8, label=name
            )
    axes.set_xscale("log")
    axes.set_ylim(0, 1)


def _plain_ticks(axes: Axes, *, both: bool = False) -> None:
    """Label 100, 200, 500 and 1,000 instead of powers of ten."""
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _place: f"{value:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
