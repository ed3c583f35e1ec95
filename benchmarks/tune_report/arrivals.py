"""When requests arrive: renewal processes under any rate, by turning time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rate = Callable[[Floats], Floats]
"""Requests per second at each of some times."""
_GRID_S = 0.1


def arrivals(random: np.random.Generator, rate: Rate, duration_s: float, cv: float = 1.0) -> Floats:
    """Times in [0, duration_s) of a gamma renewal process with coefficient of variation `cv`.

    Gaps of mean one are drawn and then mapped through the inverse of the rate's integral, so
    that the rate may change while burstiness stays; `cv` 1 is Poisson.
    """
    grid = np.arange(0.0, duration_s + _GRID_S, _GRID_S)
    expected = np.concatenate(([0.0], np.cumsum(rate(grid[:-1]) * _GRID_S)))
    shape = 1.0 / (cv * cv)
    total = float(expected[-1])
    count = int(total + 10 * cv * np.sqrt(total + 1) + 50)
    ticks = np.cumsum(random.gamma(shape, 1.0 / shape, count))
    times = np.interp(ticks[ticks < total], expected, grid)
    return np.asarray(times[times < duration_s], dtype=np.float64)


def constant(rps: float) -> Rate:
    """The same rate all the time."""
    return lambda at_s: np.full_like(at_s, rps)


def pieces(*steps: tuple[float, float]) -> Rate:
    """From each time on, its rate: (start_s, rps), the first at 0."""
    starts = np.array([start_s for start_s, _ in steps])
    rates = np.array([rps for _, rps in steps])
    return lambda at_s: rates[np.searchsorted(starts, at_s, side="right") - 1]


def wave(low_rps: float, high_rps: float, period_s: float) -> Rate:
    """Begin low, be high after half a period: a day in minutes."""
    middle, swing = (low_rps + high_rps) / 2, (high_rps - low_rps) / 2
    return lambda at_s: middle - swing * np.cos(2 * np.pi * at_s / period_s)
