"""Confidence intervals by a moving-block bootstrap over requests. Pure.

Requests that wait in one queue resemble their neighbours, so they are drawn in blocks of
neighbours, n^(1/3) each (the usual length for means and quantiles). A request brings all of its
values, such as its gaps. A draw is a weight for each request, so that a quantile of a draw is read
from values that are sorted once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
CONFIDENCE: Final = 0.95
_Z: Final = 1.96
_NUM_DRAWS: Final = 1000
_MOST_CELLS: Final = 40_000_000
"""Draws times values, above which there are fewer draws: some seconds of one processor."""
_FEWEST_DRAWS: Final = 200


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; None without values."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Draws:
    """How often each request is in each draw."""

    weights: npt.NDArray[np.int64]  # [draws, requests]

    def mean(self, per_request: Sequence[float], *, scale: float = 1.0) -> Estimate:
        """Return the mean of one value for each request, times `scale`."""
        values = np.asarray(per_request, np.float64)
        if not values.size:
            return Estimate(None)
        drawn = self.weights @ values / values.size
        low, high = _interval(drawn)
        return Estimate(float(values.mean()) * scale, low * scale, high * scale)

    def share(self, hits: Sequence[bool]) -> Estimate:
        """Return a share; its interval is no narrower than Wilson's, which has a width at 100 %."""
        drawn = self.mean([float(hit) for hit in hits])
        return at_least_wilsons(drawn, sum(hits), len(hits))

    def ratio(
        self, parts: Sequence[float], wholes: Sequence[float], *, scale: float = 1.0
    ) -> Estimate:
        """Return `scale` times the sum of `parts` over that of `wholes`, of each request one."""
        above, below = np.asarray(parts, np.float64), np.asarray(wholes, np.float64)
        if not below.sum():
            return Estimate(None)
        drawn_below = self.weights @ below
        drawn = (self.weights @ above)[drawn_below > 0] / drawn_below[drawn_below > 0]
        low, high = _interval(drawn)
        return Estimate(float(above.sum() / below.sum()) * scale, low * scale, high * scale)

    def quantiles(
        self, values: Sequence[float], owners: Sequence[int], shares: Sequence[float]
    ) -> list[Estimate]:
        """Return quantiles (nearest rank) of values, each of the request `owners` names."""
        if not len(values):
            return [Estimate(None) for _ in shares]
        order = np.argsort(np.asarray(values, np.float64), kind="stable")
        ordered = np.asarray(values, np.float64)[order]
        owned = np.asarray(owners, np.int64)[order]
        num_draws = max(_FEWEST_DRAWS, min(len(self.weights), _MOST_CELLS // len(ordered)))
        found = np.empty((min(num_draws, len(self.weights)), len(shares)))
        for row, weights in enumerate(self.weights[:num_draws]):
            totals = np.cumsum(weights[owned])
            ranks = np.maximum(np.ceil(np.asarray(shares) * totals[-1] - 1e-9), 1)
            places = np.searchsorted(totals, ranks)
            found[row] = ordered[np.minimum(places, len(ordered) - 1)]
        return [
            Estimate(float(ordered[_rank(share, len(ordered)) - 1]), *_interval(found[:, place]))
            for place, share in enumerate(shares)
        ]


def draws(num_requests: int, *, seed: int = 1, num_draws: int = _NUM_DRAWS) -> Draws:
    """Draw blocks of neighbouring requests until there are as many as there were."""
    if num_requests == 0:
        return Draws(np.zeros((1, 0), np.int64))
    random = np.random.default_rng(seed)
    length = block_length(num_requests)
    num_blocks = math.ceil(num_requests / length)
    starts = random.integers(0, num_requests - length + 1, (num_draws, num_blocks))
    places = (starts[:, :, None] + np.arange(length)).reshape(num_draws, -1)[:, :num_requests]
    weights = np.zeros((num_draws, num_requests), np.int64)
    np.add.at(weights, (np.arange(num_draws)[:, None], places), 1)
    return Draws(weights)


def block_length(num_requests: int) -> int:
    """Neighbours that are drawn together."""
    return max(1, round(math.cbrt(num_requests)))


def least_count(share: float) -> int:
    """How many values a quantile needs to differ from their maximum: 100 for p99."""
    return round(1 / (1 - share))


def least_count_of_bound(share: float) -> int:
    """How many values it takes until the upper bound of a quantile is below their maximum.

    All n values lie below the quantile with a probability of share^n: 368 for p99.
    """
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(share))


def at_least_wilsons(
    found: Estimate, num_hits: int, count: int, *, unit: float | None = 1.0
) -> Estimate:
    """Widen the interval of a share times `unit` to Wilson's of that share, times `unit`.

    A bootstrap of hits alone draws no miss, however few they were. Without a unit, as where no
    request tells how much a hit would bring, the interval has no upper end.
    """
    if found.value is None or found.low is None or found.high is None:
        return found
    if unit is None:
        return Estimate(found.value, found.low)
    low, high = (unit * end for end in wilson(num_hits / count, count))
    return Estimate(found.value, min(found.low, low), max(found.high, high))


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of independent trials (1927, the score interval).

    (p + z^2/2n +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)
    """
    spread = _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def _rank(share: float, count: int) -> int:
    return min(max(math.ceil(share * count - 1e-9), 1), count)


def _interval(drawn: Floats) -> tuple[float, float]:
    """Read both ends by nearest rank: values may be infinite, and are not mixed."""
    ordered = np.sort(drawn)
    tail = (1 - CONFIDENCE) / 2
    low = ordered[_rank(tail, len(ordered)) - 1]
    high = ordered[_rank(1 - tail, len(ordered)) - 1]
    return float(low), float(high)
