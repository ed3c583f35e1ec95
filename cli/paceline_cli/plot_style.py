"""The style of all plots.

Blue and orange and a dashed line: legible to every eye, and on paper.
"""

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

BEFORE: Final = "#D55E00"


AFTER: Final = "#0072B2"


INK: Final = "#333333"
"""Colour of text and lines."""


FAINT: Final = "#777777"


_DECADE: Final = 10


_STYLE: Final[dict[Any, Any]] = {  # matplotlib types its own keys
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "svg.fonttype": "path",
}


def svg(figure: Figure) -> str:
    """Return the picture as an `<svg>` element."""
    with io.StringIO() as text:
        # The same figure gives the same bytes: without the salt its parts have random names.
        with mpl.rc_context({"svg.hashsalt": "paceline"}):
            figure.savefig(text, format="svg", metadata={"Date": None})
        content = text.getvalue()
    return content[content.index("<svg") :]


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the house style inside the block."""
    with mpl.rc_context(_STYLE):
        yield


def plain_log_ticks(axis: Any, values: Sequence[float]) -> None:
    """Label a logarithmic axis with 1, 3, 10, 30, …, or within a decade 1, 2, 3, 5, 10, …."""
    finite = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))
    steps = (1, 3) if max(finite) > _DECADE * min(finite) else (1, 2, 3, 5)
    ticks = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    inside = [tick for tick in ticks if min(finite) * 0.8 <= tick <= max(finite) * 1.2]
    axis.set_major_locator(FixedLocator(inside or ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
