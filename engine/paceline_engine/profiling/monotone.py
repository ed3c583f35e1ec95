"""Brings measured times in line with the sizes of their steps: more of anything never takes less.

    most(x)  = max of ms(y) over the measured y <= x        in decodes, context, prefill, attention
    least(x) = min of ms(y) over the measured y >= x
    ms'(x)   = (most(x) + least(x)) / 2

Both bounds are monotone and meet where the measurements are: a single outlier moves its neighbours
by half of what it is off, and nothing where it fits between them.
"""

from collections.abc import Sequence

from paceline_wire import StepFeatures


def monotone(steps: Sequence[StepFeatures], ms: Sequence[float]) -> list[float]:
    """Make the times monotone in the steps' features; those that are already stay as they are."""
    sizes = [(step.decode, step.context, step.prefill, step.attention) for step in steps]

    def bound(own: tuple[int, ...]) -> float:
        below = (took for size, took in zip(sizes, ms, strict=True) if _is_within(size, own))
        above = (took for size, took in zip(sizes, ms, strict=True) if _is_within(own, size))
        return (max(below) + min(above)) / 2

    return [bound(size) for size in sizes]


def _is_within(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return all(less <= more for less, more in zip(small, large, strict=True))
