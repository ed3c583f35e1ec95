"""The recommended replicas: enough for the load, few more, and deaf to chance."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_tuner.recommendation import Recommendation

TICK_S = 5.0
CAPACITY_RPS = 1.15
"""λ* of one pod: with the headroom, each request a second needs one pod."""


def recommended(
    arrivals_rps: list[float], capacities_rps: list[float] | None = None
) -> list[int | None]:
    """Return the replicas of each tick; by default every pod's λ* is the same throughout."""
    found, recommendation = [], Recommendation()
    capacities = capacities_rps or [CAPACITY_RPS] * len(arrivals_rps)
    for tick, (arrivals, capacity) in enumerate(zip(arrivals_rps, capacities, strict=True)):
        recommendation = recommendation.updated([capacity], arrivals, tick * TICK_S)
        found.append(recommendation.replicas)
    return found


def turns(replicas: list[int | None]) -> int:
    """Count changes of direction."""
    known = [each for each in replicas if each is not None]
    steps = [after - before for before, after in pairwise(known) if after != before]
    return sum(one * other < 0 for one, other in pairwise(steps))


def test_without_a_capacity_nothing_is_recommended() -> None:
    """What was known before does not count: it may be of another model."""
    known = Recommendation().updated([1.0, 2.0], 3.0, 0.0)

    assert known.replicas == 3  # 3.45 requests a second with the headroom, 1.5 a pod
    assert known.updated([], 3.0, 5.0).replicas is None


@pytest.mark.parametrize("need", [1.0, 2.0, 3.0, 7.0, 50.0])
def test_a_need_that_moves_around_an_integer_moves_no_pod(need: float) -> None:
    """A steady load is counted a little above it and a little below, for as long as it lasts."""
    off = 0.09 * math.sqrt(need)

    replicas = recommended([need - off, need + off] * 200)

    assert turns(replicas) == 0
    assert len(set(replicas)) == 1


def test_a_capacity_that_jumps_for_a_moment_moves_no_pod() -> None:
    """λ* comes from the requests of the moment, and a few long ones make it look small."""
    capacities = [CAPACITY_RPS] * 20 + [CAPACITY_RPS / 2] * 5 + [CAPACITY_RPS] * 20

    assert set(recommended([2.5] * 45, capacities)) == {3}


def test_a_capacity_that_stays_different_is_followed_within_a_minute() -> None:
    """Prompts became twice as long."""
    replicas = recommended([2.5] * 32, [CAPACITY_RPS] * 20 + [CAPACITY_RPS / 2] * 12)

    assert replicas[19] == 3
    assert replicas[-1] == 5


def test_a_rise_beyond_chance_is_followed_at_once() -> None:
    """No window delays it: that belongs to the autoscaler, where its user sees it."""
    assert recommended([1.9, 2.5, 9.0, 48.0]) == [2, 3, 9, 48]


def test_a_fall_beyond_chance_is_followed_at_once() -> None:
    """The same, down to one pod for a load that is gone."""
    assert recommended([48.0, 9.0, 2.5, 0.0]) == [48, 9, 3, 1]


@given(st.lists(st.floats(0.0, 60.0), min_size=1, max_size=50))
def test_what_is_recommended_serves_the_load_and_little_more(arrivals: list[float]) -> None:
    """λ* of the pods covers it at every tick; what is spare is one pod, and what chance may do."""
    for need, replicas in zip(arrivals, recommended(arrivals), strict=True):
        assert replicas is not None
        assert replicas * CAPACITY_RPS >= need
        assert replicas < max(need, 0.0) + 1 + 0.25 * math.sqrt(replicas) + 1e-9
