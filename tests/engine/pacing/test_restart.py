"""A new line: the margin that it is given, and what is kept of the corrections."""

import math

import numpy as np
import pytest

from paceline_engine.pacing.residuals import Residuals

_SIGMA = 0.03
_MARGIN = math.exp(1.645 * _SIGMA)
"""Of lognormal noise: 95 of 100 steps are within it."""


def noisy(num: int, seed: int, *, correlation: float = 0.6) -> list[tuple[int, float, float]]:
    """Steps of 500 tokens that take 20 ms and some noise, each like the one before it."""
    random = np.random.default_rng(seed)
    noise, steps = 0.0, []
    for drawn in random.normal(size=num):
        noise = correlation * noise + math.sqrt(1 - correlation**2) * drawn
        steps.append((500, 20.0 * math.exp(_SIGMA * noise), 20.0))
    return steps


def followed(steps: list[tuple[int, float, float]]) -> Residuals:
    """Residuals that saw the steps one by one."""
    residuals = Residuals(8192)
    for step in steps:
        residuals.learn(*step)
    return residuals


@pytest.mark.parametrize("level", [0.96, 1.0, 1.04], ids=["quick end", "even", "slow end"])
def test_a_new_line_keeps_the_margin_whatever_the_newest_steps_were(level: float) -> None:
    """The level of the last steps is no reason to call all the steps before them early or late.

    A slow spell by chance would take the margin away from the steps after it.
    """
    steps = noisy(600, seed=5)
    steps[-20:] = [(tokens, ms * level, line) for tokens, ms, line in steps[-20:]]
    residuals = followed(steps)

    residuals.restart(steps)

    assert residuals.q_r == pytest.approx(_MARGIN, rel=0.015)


def test_a_new_line_is_judged_as_if_it_had_been_in_use() -> None:
    """Steps that ran under a line, and the same steps judged later by it, give one margin."""
    residuals = followed(noisy(600, seed=3))
    before = residuals.q_r

    residuals.restart(noisy(600, seed=3))

    assert residuals.q_r == pytest.approx(before, rel=0.005)


def test_a_line_that_a_change_of_pace_made_wrong_does_not_widen_the_margin_for_long() -> None:
    """The level follows the steps within the replay too: half of them ran on a slower device."""
    slow = [(tokens, 1.3 * ms, line) for tokens, ms, line in noisy(300, seed=8)]
    steps = noisy(300, seed=7) + slow
    residuals = followed(steps)

    residuals.restart(steps)

    assert residuals.factor(500) == pytest.approx(1.3, rel=0.05)
    assert residuals.q_r < 1.2


def test_a_tile_is_known_after_its_first_visits() -> None:
    """Steps that nobody takes until their correction is right are taken late, or never."""
    residuals = Residuals(8192)

    for _ in range(20):
        residuals.learn(400, 20.0, 20.0)
        residuals.learn(1000, 22.0, 20.0)

    assert residuals.factor(1000) / residuals.factor(400) == pytest.approx(1.1, rel=0.03)


def test_corrections_that_a_new_line_has_taken_in_are_dropped() -> None:
    """What the line says by now, a correction would say a second time.

    The level would then leave the range in which corrections are learned, and stay wrong.
    """
    shape = [100] * 19 + [1000]
    steps = noisy(600, seed=2)
    measured = [(shape[i % 20], ms) for i, (_, ms, _) in enumerate(steps)]
    dear_when_small = followed([(n, ms, 28.0 if n < 128 else 20.0) for n, ms in measured])

    dear_when_small.restart([(n, ms, 20.0) for n, ms in measured])

    assert dear_when_small.factor(100) == pytest.approx(1.0, rel=0.05)
    assert dear_when_small.factor(1000) == pytest.approx(1.0, rel=0.05)


def test_corrections_that_still_hold_stay_with_a_new_line() -> None:
    """A tile is as dear under another line; to learn it anew would take its time."""
    steps = [
        (400 if i % 2 else 1000, ms * (1.0 if i % 2 else 1.1), line)
        for i, (_, ms, line) in enumerate(noisy(600, seed=4))
    ]
    residuals = followed(steps)

    residuals.restart([(tokens, ms, 1.01 * line) for tokens, ms, line in steps])

    assert residuals.factor(1000) / residuals.factor(400) == pytest.approx(1.1, rel=0.02)
