"""When nothing runs: from the spans of kernels to the pauses between steps. Pure."""

from collections.abc import Iterable
from statistics import median

Span = tuple[float, float]
"""Start and end."""


def gaps(spans: Iterable[Span]) -> list[float]:
    """Pauses in which no span runs, in order; spans may overlap, as streams do."""
    pauses = []
    busy_until: float | None = None
    for start, end in sorted(spans):
        if busy_until is not None and start > busy_until:
            pauses.append(start - busy_until)
        busy_until = end if busy_until is None else max(busy_until, end)
    return pauses


def between_steps(spans: Iterable[Span], num_steps: int) -> float:
    """Median of the longest pauses, one between each step and the next; 0 without any.

    A pause within a step that is longer counts instead: this is never below the truth.
    """
    longest = sorted(gaps(spans), reverse=True)[: num_steps - 1]
    longest += [0.0] * (num_steps - 1 - len(longest))
    return median(longest) if longest else 0.0
