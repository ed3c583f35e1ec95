"""The step target weighs late gaps against requests that find no room."""

from collections.abc import Callable

import pytest

from paceline_tuner.balance import Balance, balance, missed

Q_R = 1.045
TAIL = 0.98


def all_served(_share: float) -> float:
    return 1.0


def nothing_served(_share: float) -> float:
    return 0.0


def in_proportion(share: float) -> float:
    """A pod near its floor: a step a little shorter has hardly room for a prompt."""
    return share**4


def test_steps_are_shorter_where_that_costs_nothing() -> None:
    """Late gaps gather in few requests: those must keep theirs, not the gaps of all together."""
    found = balance(Q_R, 270.0, all_served, TAIL)

    assert found.share < 0.95 * TAIL
    assert found.missed < 0.002
    assert missed(Q_R, 270.0, TAIL) > 0.05


def test_no_more_is_taken_off_than_pays() -> None:
    """A first token waits for every token that a step does not hold."""
    found = balance(Q_R, 270.0, all_served, TAIL)

    assert found.share > 0.88
    assert missed(Q_R, 270.0, found.share + 0.02) > found.missed


def test_what_is_served_is_weighed_against_what_is_late() -> None:
    """Where shorter steps serve fewer, some late gaps are worth it."""
    free, dear = (balance(Q_R, 270.0, served, TAIL) for served in (all_served, in_proportion))

    assert free.share < dear.share <= TAIL
    assert dear.missed > free.missed


@pytest.mark.parametrize("served", [all_served, in_proportion, nothing_served])
@pytest.mark.parametrize("q_r", [0.9, 1.0, 1.05, 1.3, 3.0])
@pytest.mark.parametrize("gaps", [0.0, 1.0, 150.0, 4000.0])
def test_it_never_exceeds_what_keeps_the_gaps(
    served: Callable[[float], float], q_r: float, gaps: float
) -> None:
    """Whatever the noise and the lengths: the 99th of 100 gaps keeps its target too."""
    found = balance(q_r, gaps, served, TAIL)

    assert isinstance(found, Balance)
    assert 0.6 * TAIL <= found.share <= TAIL
    assert 0.0 <= found.missed <= 1.0


def test_longer_requests_may_have_more_late_gaps() -> None:
    """One in a hundred of 150 gaps is one; the chance of two is that of gathering."""
    assert missed(Q_R, 150.0, 0.94) > missed(Q_R, 1500.0, 0.94)
