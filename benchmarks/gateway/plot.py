"""Draw what each balancing policy did with the same requests: bars are medians over repeats."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, FAINT, INK, styled

_OURS: Final = "reported utilization"
_PANELS: Final[tuple[tuple[str, str, Callable[[Mapping[str, Any]], float]], ...]] = (
    ("In time, requests a second", "{:.2f}", lambda row: row["goodput_rps"]),
    ("Refused, % of requests", "{:.0f} %", lambda row: 100 * row["refused"] / row["requests"]),
    ("TTFT p99 of the others (s)", "{:.2f} s", lambda row: row["ttft_p99_s"]),
)
"""Title, how a bar is labelled, and its figure of one repeat."""
_TTFT: Final = 2


def draw_policies(rows: Sequence[Mapping[str, Any]], target_s: float, path: Path) -> None:
    """Draw each policy's medians as bars, and each repeat as a dot."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    colors = [AFTER if policy == _OURS else FAINT for policy in policies]
    with styled():
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        figure.suptitle(
            "Balanced by what pods report, most requests are in time and fewest are refused\n"
            "(measured: two pods behind a real Envoy Gateway, one of them slowed)",
            x=0.01, ha="left", fontsize=12, fontweight="bold",
        )  # fmt: skip
        axes = figure.subplots(1, len(_PANELS), sharey=True)
        for axis, (title, label, figure_of) in zip(axes, _PANELS, strict=True):
            repeats = [
                [figure_of(row) for row in rows if row["policy"] == policy] for policy in policies
            ]
            middle = [median(each) for each in repeats]
            axis.barh(policies, middle, height=0.62, color=colors, alpha=0.85)
            for place, values in enumerate(repeats):
                name = "one repeat (bar: their median)" if place == 0 else None
                axis.plot(values, [place] * len(values), "o", ms=4, mfc="white", mec=INK,
                          label=name)  # fmt: skip
                axis.annotate(label.format(middle[place]), (1, place), ha="right", va="center",
                              xycoords=axis.get_yaxis_transform(), fontsize=9,
                              fontweight="bold")  # fmt: skip
            axis.set_xlim(0, 1.45 * max(map(max, repeats)))
            axis.set_title(title, fontsize=10)
        axes[0].invert_yaxis()
        axes[_TTFT].axvline(target_s, color=INK, ls="--", lw=1, label=f"target {target_s:g} s")
        handles, labels = axes[_TTFT].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False,
                      fontsize=9)  # fmt: skip
        figure.savefig(path, dpi=110, metadata={"Software": None})
