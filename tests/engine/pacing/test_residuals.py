"""What the line misses is followed: by size, by level, and from one step to the next."""

import math
import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing.residuals import Autocorrelation, Residuals, _quantile


def correlated(count: int, *, sigma: float, correlation: float, seed: int = 1) -> list[float]:
    """Draw log-normal factors of which each resembles the one before."""
    rng = random.Random(seed)
    level, factors = 0.0, []
    for _ in range(count):
        fresh = math.sqrt(1 - correlation**2) * rng.gauss(0.0, sigma)
        level = correlation * level + fresh
        factors.append(math.exp(level))
    return factors


def errors(residuals: Residuals, factors: list[float]) -> list[float]:
    """Relative errors of predicted steps of one size, whose line says 10 ms."""
    found = []
    for factor in factors:
        found.append(abs(residuals.factor(8) / factor - 1))
        residuals.learn(8, 10.0 * factor, 10.0)
    return found


def test_a_slow_moment_is_expected_to_last() -> None:
    """With a correlation of 0.7 the last step foretells half of the variance."""
    factors = correlated(6000, sigma=0.08, correlation=0.7)

    found = statistics.fmean(errors(Residuals(2048, 4), factors)[500:])

    by_mean = statistics.fmean(abs(1 / factor - 1) for factor in factors[500:])
    best = 0.08 * math.sqrt(1 - 0.7**2) * math.sqrt(2 / math.pi)
    assert found < 0.8 * by_mean
    assert found == pytest.approx(best, rel=0.1)


def test_noise_without_memory_is_not_followed() -> None:
    """A step that is slow by chance says nothing of the next."""
    factors = correlated(6000, sigma=0.08, correlation=0.0)

    found = statistics.fmean(errors(Residuals(2048, 4), factors)[500:])

    by_mean = statistics.fmean(abs(1 / factor - 1) for factor in factors[500:])
    assert found == pytest.approx(by_mean, rel=0.05)


def test_a_stair_between_four_rows_is_learned() -> None:
    """Kernels take whole rows: the fifth token of a step may cost as much as sixteen."""
    residuals = Residuals(2048, 4)
    for _ in range(60):
        residuals.learn(4, 10.0, 10.0)
        residuals.learn(5, 13.0, 10.0)

    assert residuals.correction_of(5) > 1.15 * residuals.correction_of(4)
    assert residuals.correction_of(8) == residuals.correction_of(5)


@pytest.mark.parametrize(("bin_tokens", "last"), [(4, 4), (128, 128)], ids=["cpu", "gpu"])
def test_a_bin_ends_where_a_full_tile_does(bin_tokens: int, last: int) -> None:
    """128 tokens are one tile, 129 are two."""
    residuals = Residuals(4096, bin_tokens)
    residuals.seed([0.9, 1.2])

    assert residuals.correction_of(1) == residuals.correction_of(last) == 0.9
    assert residuals.correction_of(last + 1) == 1.2


def test_the_tail_is_not_that_of_a_level_that_wavers() -> None:
    """Each new fit judges the newest steps as they would have been predicted, one by one."""
    rng = random.Random(3)
    slow = [(1.0 + 0.15 * math.sin(i / 100)) * rng.lognormvariate(0.0, 0.02) for i in range(600)]
    steps = [(8, 10.0 * factor, 10.0) for factor in slow]
    residuals = Residuals(2048, 4)
    for step in steps:
        residuals.learn(*step)

    residuals.restart(steps)

    assert residuals.q_r < 1.08  # the level alone goes 1.15 times up


@settings(max_examples=100)
@given(st.lists(st.floats(0.6, 1.5), max_size=400))
def test_an_echo_is_bounded_whatever_is_heard(ratios: list[float]) -> None:
    """It multiplies what a step may take: it must not run away."""
    neighbours = Autocorrelation()
    neighbours.observe(ratios)

    assert 0.6 <= neighbours.factor <= 1.5


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=60),
    st.sampled_from([0.05, 0.5, 0.95, 1.0]),
)
def test_the_quantile_is_numpy_s_to_the_last_bit(values: list[float], share: float) -> None:
    """It is computed in the way of a step, so in less time; every judgement rests on it."""
    assert _quantile(np.array(values), share) == float(np.quantile(np.array(values), share))
