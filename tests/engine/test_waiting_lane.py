"""In which order the requests of a lane wait."""

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.request import Request
from paceline_engine.scheduling.request_table import WaitingLane
from paceline_wire import Sampling


def a_request(number: int, *, arrived_at: float = 0.0, turn_at: float | None = None) -> Request:
    return Request(
        str(number),
        [0] * (number % 7 + 1),
        1,
        Sampling(max_tokens=4),
        arrived_at=arrived_at,
        number=number,
        turn_at=turn_at,
    )


def a_lane(*turns: float | None) -> WaitingLane:
    lane = WaitingLane()
    for number, turn_at in enumerate(turns):
        lane.append(a_request(number, turn_at=turn_at))
    return lane


def numbers(lane: WaitingLane) -> list[int]:
    return [request.number for request in lane]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 3)), max_size=40))
def test_turns_are_the_order_and_nobody_passes_whose_turn_has_come(
    gaps_and_delays: list[tuple[float, float]],
) -> None:
    """Whatever floods in later: who comes after a request's turn waits behind it."""
    lane, now = WaitingLane(), 0.0
    for number, (gap_s, delay_s) in enumerate(gaps_and_delays):
        now += gap_s
        lane.append(a_request(number, arrived_at=now, turn_at=now + delay_s))

    waiting = list(lane)
    turns = [request.turn_at or 0.0 for request in waiting]
    assert turns == sorted(turns)
    for place, turn_at in enumerate(turns):
        assert all(before.arrived_at <= turn_at for before in waiting[:place])
    assert lane.num_tokens == sum(len(request.token_ids) for request in waiting)


def test_without_turns_requests_wait_as_they_came() -> None:
    """As where nobody asks for another order."""
    assert numbers(a_lane(None, None, None)) == [0, 1, 2]


def test_equal_turns_keep_their_order_of_arrival() -> None:
    """As prompts of one length that came at one instant."""
    assert numbers(a_lane(2.0, 1.0, 1.0, 2.0)) == [1, 2, 0, 3]


def test_nobody_passes_a_request_without_a_turn() -> None:
    """The order may be changed while requests wait: each keeps the place that it was given."""
    assert numbers(a_lane(9.0, None, 5.0, 1.0)) == [0, 1, 3, 2]


def test_nobody_passes_a_request_that_was_preempted() -> None:
    """Its output has begun: somebody reads along."""
    lane = a_lane(1.0, 2.0)
    preempted = a_request(9, turn_at=8.0)
    preempted.num_preemptions = 1
    lane.put_back(preempted)

    lane.append(a_request(10, turn_at=0.5))

    assert numbers(lane) == [9, 10, 0, 1]
