"""What steps of many sizes took, made monotone: more of anything never takes less. Pure.

    most(x)  = max of ms(y) over the measured y <= x        in decodes, context, prefill, attention
    least(x) = min of ms(y) over the measured y >= x
    ms'(x)   = (most(x) + least(x)) / 2

Both bounds are monotone and meet where the measurements are: a single outlier moves its neighbours
by half of what it is off, and nothing where it fits between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline_engine.pacing.cost_points import CostPoint


@dataclass(frozen=True, slots=True)
class CostRow:
    """What one step takes."""

    decode: int
    context: int
    """C: of all decodes."""
    prefill: int
    attention: int
    """A: see `StepRecord.attention`."""
    ms: float


@dataclass(frozen=True, slots=True)
class CostTable:
    """A profile of an engine that has not served yet."""

    rows: tuple[CostRow, ...]
    took_s: float
    """The profile itself."""

    def __len__(self) -> int:
        """Steps that were told apart."""
        return len(self.rows)


def cost_table(measured: Mapping[CostPoint, Sequence[float]], took_s: float) -> CostTable:
    """Medians of the repeats (milliseconds, at least one of each), made monotone."""
    points = list(measured)
    medians = [median(measured[point]) for point in points]
    return CostTable(
        tuple(
            CostRow(point.decode, point.context, point.prefill, point.attention, ms)
            for point, ms in zip(points, monotone(points, medians), strict=True)
        ),
        took_s,
    )


def monotone(points: Sequence[CostPoint], ms: Sequence[float]) -> list[float]:
    """Bring times in line with their sizes; what is monotone already stays as it is."""
    places = [_place(point) for point in points]

    def bound(own: tuple[int, ...]) -> float:
        below = (took for place, took in zip(places, ms, strict=True) if _is_within(place, own))
        above = (took for place, took in zip(places, ms, strict=True) if _is_within(own, place))
        return (max(below) + min(above)) / 2

    return [bound(place) for place in places]


def _place(point: CostPoint) -> tuple[int, ...]:
    return (point.decode, point.context, point.prefill, point.attention)


def _is_within(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    return all(less <= more for less, more in zip(small, large, strict=True))
