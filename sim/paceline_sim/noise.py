"""Random factors of step times: correlated lognormal noise and rare spikes, fixed by the seed."""

import numpy as np

from paceline_sim.compiled import compiled
from paceline_sim.hardware import Noise
from paceline_sim.state import Real


def noise_factors(noise: Noise, seed: int, count: int) -> Real:
    """A factor per step [count]. A longer list begins with the shorter one."""
    of_levels, of_spikes, of_sizes = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    level = noise.sigma * _correlated(of_levels.standard_normal(count), noise.correlation)
    is_spike = of_spikes.random(count) < noise.spike_chance
    spikes = np.where(is_spike, of_sizes.uniform(*noise.spike, count), 1.0)
    return np.asarray(np.exp(level) * spikes, np.float64)


@compiled
def _correlated(draws: Real, correlation: float) -> Real:
    """x[k] = c * x[k-1] + sqrt(1 - c^2) * draw[k]: variance 1 throughout."""
    out = draws.copy()
    fresh = (1 - correlation * correlation) ** 0.5
    for k in range(1, len(out)):
        out[k] = correlation * out[k - 1] + fresh * draws[k]
    return out
