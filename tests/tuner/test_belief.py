"""What is said of an obstacle: soon, steadily, and no longer than it is so."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paceline_tuner.belief import believe
from paceline_tuner.burn_window import BurnWindow
from paceline_tuner.condition import Obstacle
from paceline_tuner.pod_state import PodState

PERIOD_S = 5.0
OVERLOADED: Obstacle = "CapacityExceeded"
SLOW: Obstacle = "DegradedHardware"


def lived(state: PodState, seen: list[Obstacle], *, start: float, is_met: bool = False) -> PodState:
    for index, obstacle in enumerate(seen):
        state = believe(state, obstacle, start + PERIOD_S * index, is_met=is_met)
    return state


def test_an_obstacle_is_said_at_its_third_sight() -> None:
    """Two decisions may both see the same burst."""
    twice = lived(PodState(), [OVERLOADED] * 2, start=100.0)
    thrice = lived(PodState(), [OVERLOADED] * 3, start=100.0)

    assert (twice.unattainable, thrice.unattainable) == ("", OVERLOADED)


def test_an_obstacle_with_changing_names_is_in_the_way_all_the_same() -> None:
    """A load at the line between two reasons is too much for either of them."""
    state = lived(PodState(), [OVERLOADED, SLOW, OVERLOADED], start=100.0)

    assert state.unattainable


def test_the_reason_does_not_flicker() -> None:
    """A person reads one reason, until another is seen twice in a row."""
    said = lived(PodState(), [OVERLOADED] * 3, start=100.0)

    once = lived(said, [SLOW, OVERLOADED], start=115.0)
    twice = lived(said, [SLOW, SLOW], start=115.0)

    assert (once.unattainable, twice.unattainable) == (OVERLOADED, SLOW)


def test_it_ends_a_minute_after_the_last_sight_while_the_sla_is_met() -> None:
    """And after five where it is not: something stands in the way that is not seen."""
    said = lived(PodState(), [OVERLOADED] * 3, start=100.0)

    met = [lived(said, [""] * n, start=115.0, is_met=True).unattainable for n in (12, 13)]
    unmet = [lived(said, [""] * n, start=115.0).unattainable for n in (60, 61)]

    assert met == unmet == [OVERLOADED, ""]


def test_it_ends_sooner_where_the_load_is_another_now() -> None:
    """What was seen of the load before says nothing of this one."""
    said = lived(PodState(), [OVERLOADED] * 3, start=100.0)
    changed = replace(said, burn=BurnWindow(since=108.0, seen_at=115.0))

    ended = [lived(changed, [""] * n, start=115.0, is_met=True).unattainable for n in (6, 7)]

    assert ended == [OVERLOADED, ""]


@given(st.lists(st.sampled_from(["", OVERLOADED, SLOW]), max_size=60), st.booleans())
def test_nothing_is_said_that_was_not_seen(seen: list[Obstacle], is_met: bool) -> None:
    """A clear minute in which the SLA is met ends it."""
    state = lived(PodState(), seen, start=0.0, is_met=is_met)
    later = lived(state, [""] * 13, start=PERIOD_S * len(seen), is_met=True)

    assert state.unattainable in {"", *seen}
    assert later.unattainable == ""
