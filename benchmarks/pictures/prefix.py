"""Time to first token of a prompt, and of the next one that begins alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from paceline_cli.plot_style import AFTER, BEFORE, INK, styled


@dataclass(frozen=True, slots=True)
class Pair:
    """Two prompts with one beginning, one after the other."""

    first_ms: float
    second_ms: float
    found_tokens: int
    """How many tokens of the second prompt were found in the cache."""


def draw_prefix(pairs: Sequence[Pair], path: Path) -> None:
    """Draw the medians as bars and every pair as marks."""
    (found,) = {pair.found_tokens for pair in pairs}
    rows = (
        ("first prompt", BEFORE, [pair.first_ms for pair in pairs]),
        (f"second prompt,\n{found} tokens found", AFTER, [pair.second_ms for pair in pairs]),
    )
    with styled():
        figure = Figure(figsize=(7.6, 2.5), layout="constrained")
        axis = figure.subplots()
        for place, (_, color, values) in enumerate(rows):
            middle = median(values)
            axis.barh(place, middle, height=0.5, color=color)
            axis.plot(values, [place - 0.36] * len(values), "|", ms=8, color=INK)
            axis.annotate(f"{middle:,.0f} ms", (max(values), place), xytext=(8, 0),
                          textcoords="offset points", va="center", fontsize=10)  # fmt: skip
        axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
        axis.set_ylim(1.6, -0.6)
        axis.set_xlim(0, 1.15 * max(pair.first_ms for pair in pairs))
        axis.set_xlabel(f"time to first token (ms): bars are medians, marks {len(pairs)} pairs")
        axis.set_title("A found beginning is not computed again (measured, two CPU cores)")
        figure.savefig(path, dpi=110, metadata={"Software": None})
