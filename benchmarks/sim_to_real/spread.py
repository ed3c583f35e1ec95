"""How the times of one run spread, kept as quantiles: a run has thousands of steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sim_to_real.measure import Played, Triple

_SHARES: Final = np.linspace(0, 1, 101)
_ENDS: Final = 5
"""Quantiles below 5 % and above 95 % are of few requests; no distance counts them."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The quantiles of one run, from 0 % to 100 %, each a hundredth after the other.

    Three of each: real, simulated, simulated at the run's speed. Empty where nothing was measured.
    """

    load: str
    mode: str
    repeat: int
    step_ms: Triple
    ttft_ms: Triple

    @property
    def distance(self) -> float:
        """How far apart both engines are at the run's speed: mean error of the quantiles."""
        return float(np.mean([_apart(self.step_ms), _apart(self.ttft_ms)]))


def spread_of(played: Played) -> Spread:
    """Keep the quantiles of a run."""
    return Spread(
        played.load, played.mode, played.repeat, _kept(played.step_ms), _kept(played.ttft_ms)
    )


def _kept(times: Triple) -> Triple:
    real, simulated, levelled = (_quantiles(side) for side in times)
    return real, simulated, levelled


def _quantiles(values: Sequence[float]) -> list[float]:
    if not values:
        return []
    return [float(each) for each in np.quantile(values, _SHARES, method="inverted_cdf")]


def _apart(times: Triple) -> float:
    real, _, levelled = (np.array(side[_ENDS : len(side) - _ENDS]) for side in times)
    if not len(real) or not len(levelled):
        return 0.0
    return float(np.mean(np.abs(levelled / real - 1)))
