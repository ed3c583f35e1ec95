"""Draws the gain of speculation by lookup over concurrency, a line for each kind of text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from paceline_cli.plot_style import AFTER, BEFORE, INK, styled

_LOOKS: Final = {
    "repetitive": (AFTER, "-", "o"),
    "prose": (BEFORE, "--", "s"),
    "json": ("#009E73", "-.", "D"),
    "json, forced alone": ("#CC79A7", ":", "^"),
}
"""Colour, dash and mark of each text that the benchmark knows."""


@dataclass(frozen=True, slots=True)
class Gain:
    """One text at one number of requests at a time."""

    text: str
    load: int
    """Requests at a time."""
    ratio: float
    """Tokens a second with drafts over those without: the median of interleaved pairs."""
    lowest: float
    highest: float


def draw_speculation(gains: Sequence[Gain], texts: Sequence[str], path: Path) -> None:
    """Draw the median and the range of each named text."""
    shown = [each for each in gains if each.text in texts]
    loads = sorted({each.load for each in shown})
    with styled():
        figure = Figure(figsize=(7.6, 3.8), layout="constrained")
        axis = figure.subplots()
        for text in texts:
            color, dash, mark = _LOOKS[text]
            rows = sorted((each for each in shown if each.text == text), key=lambda row: row.load)
            below = [row.ratio - row.lowest for row in rows]
            above = [row.highest - row.ratio for row in rows]
            axis.errorbar([row.load for row in rows], [row.ratio for row in rows],
                          yerr=(below, above), color=color, ls=dash, marker=mark, ms=6, lw=2,
                          capsize=3, elinewidth=1, label=text)  # fmt: skip
        axis.axhline(1.0, color=INK, ls=":", lw=1)
        axis.annotate("as fast as without", (0.01, 1.0), xycoords=axis.get_yaxis_transform(),
                      xytext=(0, -12), textcoords="offset points", fontsize=9)  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(loads))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axis.set_xlabel("requests at a time")
        axis.set_ylabel("gain: tokens/s over those without")
        axis.set_ylim(0, 1.08 * max(row.highest for row in shown))
        axis.set_title("Lookup gains less with more requests at a time (measured, two CPU cores)")
        figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=9)
        figure.savefig(path, dpi=110, metadata={"Software": None})
