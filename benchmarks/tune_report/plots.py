"""The page's plots."""

import statistics
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled
from tune_report.limits_plot import draw_limits
from tune_report.page import COMPARED, steady_of
from tune_report.run import OURS, Results
from tune_report.targets import ORACLE, SINGLE, median_interval, ratios

ARMS: Final[Mapping[str, str]] = {
    OURS: "Paceline's tuner",
    ORACLE: "best fixed limits at each load, in hindsight",
    SINGLE: "best fixed limits for all workloads",
    "default 1024/8192": "fixed: batch 1,024, budget 8,192",
    "default 256/2048": "fixed: batch 256, budget 2,048",
    "AIMD 1024/8192": "AIMD from batch 1,024, budget 8,192",
    "AIMD 256/2048": "AIMD from batch 256, budget 2,048",
}
"""Names of arms in pictures, where the name that the page uses needs the page's explanation."""
_COMPARED: Final = (OURS, *(arm for arm in COMPARED if arm != OURS))
_SWEPT: Final = {
    ORACLE: (INK, ":", 1.5),
    SINGLE: (FAINT, "-.", 1.5),
    "AIMD 256/2048": (FAINT, "-", 1.5),
    "default 256/2048": (BEFORE, "-", 1.5),
    "default 1024/8192": (BEFORE, ":", 2.0),
    OURS: (AFTER, "-", 2.5),
}
_OBJECTIVE: Final = 0.99
_LEAST_SHOWN: Final = 0.75
"""The axis of the sweep begins here. Only the fixed defaults fall below it."""
_SHARES: Final = LinearSegmentedColormap.from_list(
    "shares",
    [(0.0, "#7A3600"), (0.5, BEFORE), (0.85, "#F8E4D6"), (0.95, "#BBD9EC"), (1.0, AFTER)],
)
"""Orange to blue as in every picture, and dark at both ends."""
_DARK: Final = 0.5
"""Digits are white on cells whose luminance is below."""


def draw(results: Results, folder: Path) -> None:
    """Write every picture of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    draw_scores(results, folder)
    draw_limits(results, folder / "limits.png")


def draw_scores(results: Results, folder: Path) -> None:
    """Write goodput.png, summary.png and sweep.png, which need no tracks of limits."""
    with styled():
        _summary(results, folder / "summary.png")
        _goodput(results, folder / "goodput.png")
        _sweep(results, folder / "sweep.png")


def _share(results: Results, workload: str, arm: str) -> float:
    """Return good requests over the oracle's, as the median over seeds."""
    return statistics.median(ratios(results, workload, arm, ORACLE))


def _least(results: Results) -> int:
    """Return the tuner's worst workload, in whole per cent that it surely reaches."""
    return int(100 * min(_share(results, w.name, OURS) for w in results.workloads))


def _summary(results: Results, path: Path) -> None:
    """Draw the worst and the median workload of each arm."""
    names = [w.name for w in results.workloads]
    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots()
    for row, arm in enumerate(_COMPARED):
        shares = [_share(results, name, arm) for name in names]
        color = AFTER if arm == OURS else FAINT
        worst, middle = min(shares), statistics.median(shares)
        axes.barh(row, middle, height=0.72, color=color, alpha=0.3)
        axes.barh(row, worst, height=0.36, color=color)
        axes.annotate(f"worst {100 * worst:.0f} %, median {100 * middle:.0f} %", (1.02, row),
                      va="center", fontsize=9, color=color if arm == OURS else INK)  # fmt: skip
    axes.set_yticks(range(len(_COMPARED)), [ARMS.get(arm, arm) for arm in _COMPARED])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4)
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1.0))
    axes.xaxis.set_major_formatter(FuncFormatter(_per_cent))
    axes.axvline(1, color=INK, ls="--", lw=1)
    axes.set_xlabel(
        "good requests, % of those of each workload's best fixed limits\n"
        "wide bar: median workload; narrow bar: worst workload",
        loc="left",
        fontsize=9,
    )
    _title(figure, f"Paceline's tuner serves at least {_least(results)} % of the good requests"
                   f" of the best fixed limits,\non each of {len(names)} workloads"
                   " (simulated)")  # fmt: skip
    _save(figure, path)


def _goodput(results: Results, path: Path) -> None:
    """Draw a heat map: workloads down, grouped by device and promise; arms across."""
    groups = [
        (setting, [w.name for w in found])
        for setting, found in groupby(results.workloads, key=lambda w: w.setting.name)
    ]
    figure = Figure(figsize=(9, 0.235 * len(results.workloads) + 4.2), layout="constrained")
    panels = figure.subplots(
        len(groups), 1, squeeze=False, height_ratios=[len(names) for _, names in groups]
    )[:, 0]
    for axes, (setting, names) in zip(panels, groups, strict=True):
        share = np.array([[_share(results, name, arm) for arm in _COMPARED] for name in names])
        axes.imshow(share, cmap=_SHARES, vmin=0, vmax=1, aspect="auto")
        for (row, column), value in np.ndenumerate(share):
            axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=9,
                      color="white" if _luminance(value) < _DARK else INK)  # fmt: skip
        axes.set_yticks(range(len(names)), [name.removeprefix(f"{setting}: ") for name in names])
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.axvline(0.5, color="white", lw=4)
        axes.set_title(f"{setting} ms", fontsize=10)
    panels[0].set_xticks(range(len(_COMPARED)), [_short(arm) for arm in _COMPARED], rotation=40,
                         ha="left", rotation_mode="anchor")  # fmt: skip
    panels[0].xaxis.tick_top()
    _title(figure, f"Paceline's tuner serves at least {_least(results)} % of the good requests of"
                   " the best fixed limits (simulated)\n")  # fmt: skip
    figure.supxlabel(
        "good requests, % of those of the best fixed limits of each workload in hindsight;"
        " median over seeds",
        fontsize=10, color=INK,
    )  # fmt: skip
    _save(figure, path)


def _short(arm: str) -> str:
    """Name an arm above its column."""
    name = "Paceline" if arm == OURS else arm
    name = name.replace("best single static", "best for all").replace("default", "fixed")
    return name.replace("1024/8192", "1,024 / 8,192").replace("256/2048", "256 / 2,048")


def _luminance(share: float) -> float:
    red, green, blue, _ = _SHARES(min(share, 1.0))
    return float(0.299 * red + 0.587 * green + 0.114 * blue)


def _sweep(results: Results, path: Path) -> None:
    """Attainment against load, with the bootstrap's interval."""
    steady = steady_of(results)
    setting = results.workloads[0].setting
    loads = [100 * (w.load or 0.0) for w in steady]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    kept = 0.0
    for arm, (color, dash, width) in _SWEPT.items():
        rows = [
            median_interval([s.attainment.least for s in results.scores[w.name, arm]])
            for w in steady
        ]
        middle, low, high = (np.array(column) for column in zip(*rows, strict=True))
        axes.plot(loads, middle, marker="o", ms=4, label=ARMS[arm], color=color, ls=dash, lw=width)
        axes.fill_between(loads, low, high, alpha=0.12, color=color, lw=0)
        if arm == OURS:
            kept = max((load for load, share in zip(loads, middle, strict=True)
                        if share >= _OBJECTIVE), default=0.0)  # fmt: skip
    axes.axhline(_OBJECTIVE, color=INK, ls="--", lw=1)
    axes.annotate("99 % objective", (1, _OBJECTIVE), xycoords=axes.get_yaxis_transform(),
                  xytext=(0, -12), textcoords="offset points", ha="right", fontsize=9,
                  color=INK)  # fmt: skip
    axes.axvline(100, color=FAINT, lw=0.8)
    axes.set_ylim(_LEAST_SHOWN, 1.005)
    axes.yaxis.set_major_formatter(FuncFormatter(_per_cent))
    axes.set_ylabel(f"share in time (axis begins at {100 * _LEAST_SHOWN:.0f} %)")
    axes.set_xlabel("load, % of what the best fixed limits serve at 99 %")
    counted = "first tokens, mean token times or gaps between tokens: whichever share is least"
    axes.set_title(f"{counted}; bands: 95 % interval over seeds", fontsize=9, fontweight="normal")
    _title(figure, f"Paceline's tuner keeps the objective up to {kept:.0f} % of the load"
                   f" (simulated, {setting.name} ms)")  # fmt: skip
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[-1:] + handles[:-1], labels[-1:] + labels[:-1], frameon=False, fontsize=9,
                loc="lower left")  # fmt: skip
    _save(figure, path)


def _per_cent(value: float, _place: Any) -> str:
    return f"{100 * value:.0f} %"


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
