"""Draw limits.png: the limits that the tuner set over time, and how much ran."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled
from tune_report.run import Results
from tune_report.tracks import DRAWN, Track, tracks_of
from tune_report.workloads import ReportWorkload


def draw_limits(results: Results, path: Path) -> None:
    """Draw sequences on the left and the step target on the right, a row for each workload."""
    known = {w.name: w for w in results.workloads}
    drawn = tracks_of(results)
    if not drawn:
        return
    setting = results.workloads[0].setting
    with styled():
        figure = Figure(figsize=(9.5, 1.95 * len(drawn) + 1.2), layout="constrained")
        rows = figure.subplots(len(drawn), 2, sharex=True, squeeze=False, width_ratios=(3, 2))
        for (left, right), (name, track) in zip(rows, drawn.items(), strict=True):
            happens = DRAWN[name.removeprefix(f"{setting.name}: ")]
            left.set_title(happens[0].upper() + happens[1:], fontsize=10)
            _sequences(left, track)
            _target(right, track, known[name])
        for axes in rows[-1]:
            axes.set_xlabel("seconds")
        handles = [
            *rows[0][0].get_legend_handles_labels()[0],
            *rows[0][1].get_legend_handles_labels()[0],
        ]
        figure.legend(handles=handles, loc="outside lower left", ncols=5, frameon=False,
                      fontsize=9)  # fmt: skip
        figure.suptitle(
            "The tuner's limits hold still while the load moves, and follow the SLA"
            f" (simulated, {setting.name} ms)",
            x=0.01, ha="left", fontsize=11, fontweight="bold",
        )  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _sequences(axes: Any, track: Track) -> None:
    at_s = [row[0] for row in track]
    axes.step(at_s, [row[1] for row in track], where="post", color=AFTER, lw=2.5,
              label="max batch size")  # fmt: skip
    axes.plot(at_s, [row[4] for row in track], color=FAINT, lw=1.5, label="running")
    axes.plot(at_s, [row[5] for row in track], color=BEFORE, lw=1.5, label="waiting")
    axes.set_ylim(0, 1.15 * max(max(row[1], row[4], row[5]) for row in track))
    axes.set_xlim(0, at_s[-1])
    axes.set_ylabel("sequences")


def _target(axes: Any, track: Track, workload: ReportWorkload) -> None:
    at_s = [row[0] for row in track]
    targets = [np.nan if row[3] is None else row[3] for row in track]
    promised = [workload.sla_at(at).itl_p99_ms or np.nan for at in at_s]
    axes.step(at_s, promised, where="post", color=INK, ls="--", lw=1, label="ITL target (SLA)")
    axes.step(at_s, targets, where="post", color=AFTER, lw=2.5, ls=":", label="step target")
    axes.set_ylim(0, 1.3 * np.nanmax([*targets, *promised]))
    axes.set_ylabel("a step (ms)")
    budgets = [row[2] for row in track]
    moved = [budgets[0], *(after for before, after in pairwise(budgets) if after != before)]
    axes.annotate("token budget " + ", then ".join(f"{budget:,}" for budget in moved), (0, 0),
                  xycoords="axes fraction", xytext=(6, 6), textcoords="offset points",
                  fontsize=9, color=INK)  # fmt: skip
