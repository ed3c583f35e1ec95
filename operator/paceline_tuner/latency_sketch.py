"""LatencySketch: logarithmic bins of several slices of time, read as one."""

import heapq
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from paceline_tuner.telemetry import SketchSlice

_LEAST_BIN = -(2**15)
_KINDS = (("H", 2**16 - 1), ("I", 2**32 - 1), ("q", 2**63 - 1))
"""Type codes of `array`, each with the largest number that it can hold."""
_HIGHEST = 16


class SliceCounts:
    """One slice's bins in some hundred bytes: their indices, and how many values lie above each."""

    __slots__ = ("_above", "_indices", "alpha", "count", "lane", "start_at", "zero")

    def __init__(self, piece: SketchSlice) -> None:
        """Take the bins over; negative counts are left out."""
        kept = sorted([(index, n) for index, n in piece.bins.items() if n > 0])
        self.lane = piece.lane
        self.start_at = piece.start_at
        self.alpha = piece.alpha
        self.zero = max(piece.zero, 0)
        self._indices = array("h", [index for index, _ in kept])
        # One more than there are bins: what lies at or above each, and nothing above the last.
        sums = [*accumulate([n for _, n in reversed(kept)], initial=0)]
        kind = next(kind for kind, most in _KINDS if sums[-1] <= most)
        self._above = array(kind, reversed(sums))
        self.count = self.zero + self._above[0]

    @property
    def ends(self) -> Sequence[int]:
        """The lowest and the highest bin with a value in it; nothing where there is none."""
        return (self._indices[0], self._indices[-1]) if self._indices else ()

    @property
    def bins(self) -> tuple[Sequence[int], Sequence[int]]:
        """The indices of the bins, and how many values lie in each bin and all above it."""
        return self._indices, self._above


class LatencySketch:
    """Counts of many values, each within `alpha` of what it was."""

    __slots__ = ("_alpha", "_bins", "_log_gamma", "_slices", "count")

    def __init__(self, slices: Iterable[SketchSlice | SliceCounts]) -> None:
        """Read slices of equal alpha together; others are left out."""
        given = [s if isinstance(s, SliceCounts) else SliceCounts(s) for s in slices]
        given = [piece for piece in given if 0 < piece.alpha < 1]
        self._alpha = given[0].alpha if given else 0.0
        self._slices = [piece for piece in given if piece.alpha == self._alpha]
        self._log_gamma = math.log((1 + self._alpha) / (1 - self._alpha)) if self._alpha else 1.0
        self._bins = [piece.bins for piece in self._slices]
        self.count = sum([piece.count for piece in self._slices])

    def quantile(self, q: float) -> float | None:
        """Find the value that a share `q` of the counted ones does not exceed."""
        if self.count == 0:
            return None
        above = self.count - math.ceil(q * self.count)  # so many may be greater
        ends = [end for piece in self._slices for end in piece.ends]
        if self._at_or_above(_LEAST_BIN) <= above:
            return 0.0
        low, high = min(ends), max(ends)
        while low < high:  # the least bin with no more than `above` values in those above it
            middle = (low + high) // 2
            if self._at_or_above(middle + 1) <= above:
                high = middle
            else:
                low = middle + 1
        return self._middle(low)

    def over(self, value: float) -> int:
        """Count the values above `value`, to within a bin."""
        if not self._slices or value <= 0:
            return self._at_or_above(_LEAST_BIN)
        index = math.floor(math.log(value * (1 + math.exp(self._log_gamma)) / 2) / self._log_gamma)
        while self._middle(index) <= value:
            index += 1
        while self._middle(index - 1) > value:
            index -= 1
        return self._at_or_above(index)

    def _at_or_above(self, index: int) -> int:
        return sum([above[bisect_left(indices, index)] for indices, above in self._bins])

    def _middle(self, index: int) -> float:
        gamma = math.exp(self._log_gamma)
        return math.exp(self._log_gamma * index) * 2 / (1 + gamma)


def p99(values: Sequence[float]) -> float | None:
    """Find the least value that 99 of 100 do not exceed (nearest rank)."""
    # The hundredth part at the upper end is enough: a whole window is five thousand requests.
    highest = heapq.nlargest(len(values) - math.ceil(0.99 * len(values)) + 1, values)
    return highest[-1] if values else None


def weighted_p99(values: Sequence[tuple[float, int]]) -> float | None:
    """Find the least value that 99 of 100 do not exceed, of values that each stand for some."""
    return weighted_quantile(values, 0.99)


def weighted_quantile(values: Sequence[tuple[float, int]], share: float) -> float | None:
    """Find the least value that a `share` does not exceed, of values that each stand for some."""
    total = sum([weight for _, weight in values])
    # A sample keeps its highest values one by one: few of them are the last hundredth.
    for num in (_HIGHEST, len(values)):
        left = total - math.ceil(share * total)  # so many may be greater
        for value, weight in heapq.nlargest(num, values):
            left -= weight
            if left < 0:
                return value
    return None
