"""Balancing policies over load: what misses the SLA above, the p99 of first tokens below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from balancing.page import TITLES
from balancing.pods import TTFT_MS
from balancing.policies import BY_PREFIX, BY_SESSION, BY_UTILIZATION, LEAST_REQUEST, ROUND_ROBIN
from balancing.results import Results, Row
from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, plain_log_ticks, styled

_LINES: Final = {
    ROUND_ROBIN: (FAINT, "-", "s"),
    LEAST_REQUEST: (BEFORE, "--", "v"),
    BY_SESSION: ("#009E73", "-", "o"),
    BY_PREFIX: ("#CC79A7", "--", "D"),
    BY_UTILIZATION: (AFTER, "-", "^"),
}
"""Colour, dash and mark."""
_LEAST_PERCENT: Final = 0.01


def draw_balancing(fleets: Sequence[Results], path: Path) -> None:
    """Draw one column for each fleet."""
    with styled():
        figure = Figure(figsize=(9, 6.8), layout="constrained")
        axes = figure.subplots(2, len(fleets), sharex=True, sharey="row")
        figure.suptitle(
            "Simulated: fifty replicas by the gateway's policy, medians and ranges over seeds",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        for column, results in enumerate(fleets):
            missed, first = axes[0][column], axes[1][column]
            for policy, (color, dash, mark) in _LINES.items():
                rows = [row for row in results.rows if row.policy == policy]
                style = {"color": color, "ls": dash, "marker": mark, "ms": 5, "lw": 1.8}
                _line(missed, rows, "attained", style, policy)
                _line(first, rows, "ttft_p99_s", style, policy)
            missed.set_title(TITLES[results.fleet])
            missed.set_yscale("log")
            _target(missed, 1.0, "objective: 1 %")
            _target(first, TTFT_MS / 1e3, f"target {TTFT_MS / 1e3:g} s")
            first.set_xlabel("load, % of the fleet's λ*")
            first.set_xticks(sorted({100 * row.load for row in results.rows}))
        axes[0][0].set_ylabel("requests that miss the SLA (%)\n0.01: or fewer")
        ticks = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
        axes[0][0].set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes[0][0].minorticks_off()
        axes[1][0].set_ylabel("TTFT p99 of who was answered (s)")
        axes[1][0].set_yscale("log")
        plain_log_ticks(axes[1][0].yaxis, [0.3, 5.0])
        axes[1][0].set_yticks((0.3, 0.5, 1, 2, 3, 5), ["0.3", "0.5", "1", "2", "3", "5"])
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower left",
                      ncols=3, frameon=False, fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _line(axis: Any, rows: Sequence[Row], figure: str, style: dict[str, Any], label: str) -> None:
    loads = [100 * row.load for row in rows]
    middle = [_shown(row.median(figure), figure) for row in rows]
    ends = [sorted(_shown(end, figure) for end in row.ends(figure)) for row in rows]
    below = [value - low for value, (low, _) in zip(middle, ends, strict=True)]
    above = [high - value for value, (_, high) in zip(middle, ends, strict=True)]
    axis.errorbar(loads, middle, yerr=(below, above), capsize=3, elinewidth=1, label=label, **style)


def _shown(value: float, figure: str) -> float:
    """Turn attainment into the percentage of misses, which has a floor on a logarithmic axis."""
    return max(100 * (1 - value), _LEAST_PERCENT) if figure == "attained" else value


def _target(axis: Any, value: float, text: str) -> None:
    axis.axhline(value, color=INK, ls=":", lw=1)
    axis.annotate(text, (0.16, value), xycoords=axis.get_yaxis_transform(), xytext=(0, 3),
                  textcoords="offset points", fontsize=8.5, color=INK)  # fmt: skip
