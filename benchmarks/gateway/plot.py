"""The share of answered requests that wait longer for their first token, by policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, FAINT, INK, styled

_LINES: Final = {
    "round robin": (FAINT, "-", 1.5),
    "least requests": (BEFORE, "-", 1.5),
    "hash of the session": (INK, ":", 1.8),
    "reported utilization": (AFTER, "-", 2.5),
}


def draw_first_tokens(ttfts_s: Mapping[str, Sequence[float]], target_s: float, path: Path) -> None:
    """Draw how many first tokens are later than each time, on a logarithmic scale of shares."""
    with styled():
        figure = Figure(figsize=(7.5, 4.0), layout="constrained")
        axes = figure.subplots()
        for policy, found in ttfts_s.items():
            colour, dash, width = _LINES[policy]
            ordered = sorted(found)
            later = [1 - place / len(ordered) for place in range(len(ordered))]
            axes.step(ordered, later, where="post", color=colour, ls=dash, lw=width, label=policy)
        axes.axvline(target_s, color=FAINT, ls="--", lw=1)
        axes.annotate(
            "target", (target_s, 1), xytext=(4, -10), textcoords="offset points", fontsize=8
        )
        axes.set_yscale("log")
        axes.set_yticks([1, 0.1, 0.01], ["all", "one in ten", "one in 100"])
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds to the first token")
        axes.set_ylabel("answered requests that wait longer")
        axes.set_title("Two pods behind a real gateway, one of them slowed")
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(path, dpi=110, metadata={"Software": None})
