"""How well a step's time could be predicted at best: the error that chance alone leaves.

The best predictor knows the simulated engine's table and the noise's law, not what is
drawn anew: with x the log of the last step's factor, it says c * exp(correlation * x), where c
makes the mean absolute relative error least.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline_sim.hardware import Noise
from paceline_sim.noise import noise_factors

_STEPS = 200_000
_SEED = 11


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """Least mean absolute relative errors of predicted step times."""

    by_last: float
    """By who has seen the step before."""
    by_table: float
    """By who knows no more than what the step computes."""


@lru_cache
def noise_floor(noise: Noise) -> NoiseFloor:
    """Measure both on a long draw of the simulated engine's noise."""
    factors = np.asarray(noise_factors(noise, _SEED, _STEPS))
    logs = np.log(factors)
    # A spike ends with its step; the level below it is hidden from the step after.
    levels = np.where(factors < noise.spike[0], logs, 0.0)
    foretold = np.exp(noise.correlation * levels[:-1])
    return NoiseFloor(
        by_last=_least_error(factors[1:] / foretold), by_table=_least_error(factors[1:])
    )


def in_words(noise: Noise) -> str:
    """Describe the smallest error that could be reached."""
    floor = noise_floor(noise)
    return (
        f"the best predictor reaches {floor.by_last:.1%}, "
        f"and {floor.by_table:.1%} without the step before"
    )


def _least_error(ratios: npt.NDArray[np.float64]) -> float:
    """Least over c of mean |c / ratio - 1|: c is the median, each ratio weighted by 1/ratio."""
    ordered = np.sort(ratios)
    weights = np.cumsum(1 / ordered)
    best = ordered[np.searchsorted(weights, weights[-1] / 2)]
    return float(np.mean(np.abs(best / ratios - 1)))
