"""Inter-token gaps in slices of five seconds, as histograms that add up across pods."""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from paceline_wire.limits import Lane

ALPHA = 0.01
_GAMMA_LOG = math.log((1 + ALPHA) / (1 - ALPHA))
_SLICE_S = 5.0
_SLICES_KEPT = 24


@dataclass(slots=True)
class GapSlice:
    """Bin `i` counts the milliseconds in (g^(i-1), g^i], g = (1 + alpha) / (1 - alpha)."""

    lane: Lane
    start_at: float
    zero: int = 0
    bins: Counter[int] = field(default_factory=Counter)

    def add(self, gap_ms: float, times: int = 1) -> None:
        """Count a gap, once or as often as it was seen."""
        if gap_ms <= 0:
            self.zero += times
        else:
            self.bins[math.ceil(math.log(gap_ms) / _GAMMA_LOG)] += times


class GapSketch:
    """The newest slices of one lane, the one being filled included."""

    def __init__(self, lane: Lane) -> None:
        self._lane: Lane = lane
        self._slices: deque[GapSlice] = deque(maxlen=_SLICES_KEPT)

    def add(self, gap_ms: float, now: float, times: int = 1) -> None:
        """Count a gap in the slice that holds `now`."""
        start_at = now - now % _SLICE_S
        if not self._slices or self._slices[-1].start_at < start_at:
            self._slices.append(GapSlice(self._lane, start_at))
        self._slices[-1].add(gap_ms, times)

    def slices(self, ended_after: float = -math.inf) -> list[GapSlice]:
        """Return the slices that end after this, oldest first."""
        return [part for part in self._slices if part.start_at + _SLICE_S > ended_after]


def quantile_ms(slices: Iterable[GapSlice], share: float) -> float | None:
    """Find the gap that a share of all does not exceed, to within a bin; None without any."""
    bins: Counter[int] = Counter()
    zero = 0
    for part in slices:
        bins.update(part.bins)
        zero += part.zero
    left = math.ceil(share * (zero + bins.total())) - zero
    if left <= 0:
        return 0.0 if zero else None
    order = sorted(bins)
    counted = accumulate(bins[index] for index in order)
    index = next(index for index, upto in zip(order, counted, strict=True) if upto >= left)
    # The middle of the bin, as far from its ends in proportion.
    return 2 * math.exp(index * _GAMMA_LOG) / (1 + math.exp(_GAMMA_LOG))
