"""Balancing policies over load: what misses the SLA above, the p99 of first tokens below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from balancing.page import TITLES
from balancing.pods import TTFT_MS
from balancing.policies import BY_SESSION, BY_UTILIZATION, LEAST_REQUEST, ROUND_ROBIN
from balancing.results import Results
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled

_LINES: Final = {
    ROUND_ROBIN: (FAINT, "s"),
    LEAST_REQUEST: (BEFORE, "v"),
    BY_SESSION: ("#009E73", "o"),
    BY_UTILIZATION: (AFTER, "^"),
}
"""Colour and mark of what is drawn; the page's tables have every policy, and the ranges."""


def draw_balancing(fleets: Sequence[Results], path: Path) -> None:
    """Draw one column for each fleet: medians over seeds."""
    with styled():
        figure = Figure(figsize=(9, 6.2), layout="constrained")
        axes = figure.subplots(2, len(fleets), sharex=True, sharey="row")
        figure.suptitle(
            "Pods that are alike need no clever balancing; with slower ones it decides\n"
            "(simulated, fifty pods)",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        for column, results in enumerate(fleets):
            missed, first = axes[0][column], axes[1][column]
            loads = sorted({row.load for row in results.rows})
            percent = [100 * load for load in loads]
            for policy, (color, mark) in _LINES.items():
                rows = [results.at(policy, load) for load in loads]
                shown = (
                    (missed, [100 * (1 - row.median("attained")) for row in rows]),
                    (first, [row.median("ttft_p99_s") for row in rows]),
                )
                for axis, values in shown:
                    axis.plot(percent, values, color=color, marker=mark, ms=6, lw=2, label=policy)
            missed.set_title(TITLES[results.fleet])
            first.set_xlabel("load, % of what the fleet can serve")
            first.set_xticks(percent)
        for row in axes:
            row[0].set_ylim(bottom=0)
        _target(axes[0][0], 1.0, "objective: 1 %")
        _target(axes[0][1], 1.0)
        _target(axes[1][0], TTFT_MS / 1e3, f"target {TTFT_MS / 1e3:g} s")
        _target(axes[1][1], TTFT_MS / 1e3)
        axes[0][0].set_ylabel("requests that miss the SLA (%)")
        axes[1][0].set_ylabel("TTFT p99 of answered requests (s)")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower left",
                      ncols=4, frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _target(axis: Any, value: float, text: str = "") -> None:
    axis.axhline(value, color=INK, ls="--", lw=1)
    axis.annotate(text, (0.02, value), xycoords=axis.get_yaxis_transform(), xytext=(0, 4),
                  textcoords="offset points", fontsize=9, color=INK)  # fmt: skip
