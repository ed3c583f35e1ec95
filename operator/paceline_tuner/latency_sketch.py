"""LatencySketch: logarithmic bins that are merged by adding."""

import heapq
import math
from collections.abc import Iterable, Sequence

from paceline_tuner.telemetry import SketchSlice


class LatencySketch:
    """Counts of many values, each within `alpha` of what it was."""

    __slots__ = ("_alpha", "_bins", "_log_gamma", "_zero", "count")

    def __init__(self, slices: Iterable[SketchSlice]) -> None:
        """Merge slices of equal alpha; others, and negative counts, are left out."""
        self._zero = 0
        self._alpha = 0.0
        merged: dict[str, int] = {}
        for piece in slices:
            self._add(piece, merged)
        self._bins: dict[int, int] = {int(index): n for index, n in merged.items()}
        self._log_gamma = math.log((1 + self._alpha) / (1 - self._alpha)) if self._alpha else 1.0
        self.count = self._zero + sum(self._bins.values())

    def quantile(self, q: float) -> float | None:
        """Find the value that a share `q` of the counted ones does not exceed."""
        if self.count == 0:
            return None
        left = math.ceil(q * self.count) - self._zero
        if left <= 0:
            return 0.0
        for index in sorted(self._bins):
            left -= self._bins[index]
            if left <= 0:
                return self._middle(index)
        return self._middle(max(self._bins))

    def over(self, value: float) -> int:
        """Count the values above `value`, to within a bin."""
        return sum(n for index, n in self._bins.items() if self._middle(index) > value)

    def _add(self, piece: SketchSlice, merged: dict[str, int]) -> None:
        if not 0 < piece.alpha < 1:
            return
        self._alpha = self._alpha or piece.alpha
        if piece.alpha != self._alpha:
            return
        self._zero += max(piece.zero, 0)
        for index, n in piece.bins.items():
            if n > 0:
                merged[index] = merged.get(index, 0) + n

    def _middle(self, index: int) -> float:
        gamma = math.exp(self._log_gamma)
        return math.exp(self._log_gamma * index) * 2 / (1 + gamma)


def p99(values: Sequence[float]) -> float | None:
    """Find the least value that 99 of 100 do not exceed (nearest rank)."""
    return quantile(values, 0.99)


def quantile(values: Sequence[float], share: float) -> float | None:
    """Find the least value that a `share` of them does not exceed (nearest rank)."""
    # The upper end is enough: a whole window is five thousand requests.
    highest = heapq.nlargest(len(values) - math.ceil(share * len(values)) + 1, values)
    return highest[-1] if values else None
