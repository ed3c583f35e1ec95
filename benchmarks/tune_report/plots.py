"""The page's plots."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tune_report.arms.table import DEFAULTS
from tune_report.page import COMPARED, steady_of
from tune_report.run import OURS, Results
from tune_report.targets import ORACLE, SINGLE, median_interval, ratios
from tune_report.workloads import ReportWorkload

_COLOURS = {
    ORACLE: "#333333",
    SINGLE: "#7f7f7f",
    "default 1024/8192": "#d95f02",
    "default 256/2048": "#e6ab02",
    "AIMD 256/2048": "#7570b3",
    OURS: "#1b9e77",
}


def draw(results: Results, folder: Path) -> None:
    """Write goodput.png, sweep.png and limits.png."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_scores(results, folder)
    _limits(results, folder / "limits.png")


def draw_scores(results: Results, folder: Path) -> None:
    """Write goodput.png and sweep.png, which need no tracks of limits."""
    mpl.use("Agg")
    _goodput(results, folder / "goodput.png")
    _sweep(results, folder / "sweep.png")


def _goodput(results: Results, path: Path) -> None:
    """Draw a heat map: workloads down, arms across."""
    share = np.array(
        [
            [statistics.median(ratios(results, w.name, arm, ORACLE)) for arm in COMPARED]
            for w in results.workloads
        ]
    )
    figure, axes = plt.subplots(
        figsize=(10, 0.32 * len(results.workloads) + 2), layout="constrained"
    )
    image = axes.imshow(share, cmap="RdYlGn", vmin=0.5, vmax=1.05, aspect="auto")
    axes.set_xticks(range(len(COMPARED)), COMPARED, rotation=30, ha="right", fontsize=8)
    names = [w.name for w in results.workloads]
    axes.set_yticks(range(len(names)), names, fontsize=8)
    for (row, column), value in np.ndenumerate(share):
        axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=7)
    figure.colorbar(image, label="good requests over the oracle's, median over seeds")
    _save(figure, path)


def _sweep(results: Results, path: Path) -> None:
    """Attainment against load, with the bootstrap's interval."""
    steady = steady_of(results)
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for arm in (ORACLE, SINGLE, *DEFAULTS, "AIMD 256/2048", OURS):
        rows = [
            median_interval([s.attainment.least for s in results.scores[w.name, arm]])
            for w in steady
        ]
        middle, low, high = (np.array(column) for column in zip(*rows, strict=True))
        loads = [w.load or 0.0 for w in steady]
        axes.plot(loads, middle, marker="o", ms=3, label=arm, color=_COLOURS[arm])
        axes.fill_between(loads, low, high, alpha=0.15, color=_COLOURS[arm])
    axes.axhline(0.99, color="black", lw=0.8, ls=":")
    axes.set(xlabel="load, parts of capacity", ylabel="attainment", ylim=(0.75, 1.005))
    axes.set_title(results.workloads[0].setting.name, fontsize=10)
    axes.legend(fontsize=8)
    _save(figure, path)


def _limits(results: Results, path: Path) -> None:
    """Plot our limits in the first seed of a few workloads."""
    wanted = ("step", "overload", "hot neighbour", "SLA change", "burst CV 2.5")
    setting = results.workloads[0].setting.name
    chosen = [w for w in results.workloads if w.name in {f"{setting}: {n}" for n in wanted}]
    if not chosen:
        return
    figure, rows = plt.subplots(
        len(chosen),
        1,
        figsize=(8, 2.2 * len(chosen)),
        sharex=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, workload in zip(rows[:, 0], chosen, strict=True):
        _track(axes, results, workload)
    rows[-1, 0].set_xlabel("seconds")
    handles, labels = rows[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside upper center", ncols=4)
    _save(figure, path)


def _track(axes: Axes, results: Results, workload: ReportWorkload) -> None:
    control = results.scores[workload.name, OURS][0].control
    assert control is not None
    columns = list(zip(*control.track, strict=True))
    at_s = columns[0]
    axes.step(at_s, columns[1], where="post", label="max batch size", color="#1b9e77")
    axes.step(at_s, columns[2], where="post", label="token budget", color="#7570b3")
    axes.plot(at_s, _positive(columns[4]), lw=0.8, label="running", color="#66a61e")
    axes.plot(at_s, _positive(columns[5]), lw=0.8, label="waiting", color="#d95f02")
    axes.set_yscale("log")
    other = axes.twinx()
    targets = [np.nan if value is None else value for value in columns[3]]
    other.step(at_s, targets, where="post", color="black", lw=0.8, ls="--")
    other.set_ylabel("step target ms", fontsize=7)
    axes.set_title(workload.name, fontsize=8)


def _positive(values: Sequence[float]) -> list[float]:
    return [value if value > 0 else np.nan for value in values]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)
