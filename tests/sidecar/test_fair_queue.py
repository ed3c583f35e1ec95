"""Who is next is fair: checked on random flows against the bound that fair queueing gives."""

import random
from collections import Counter

import pytest

from paceline_sidecar.admission.fair_queue import FairQueue

WEIGHTS = {"a": 1.0, "b": 2.0, "c": 5.0}


def test_single_items_leave_in_their_order_of_arrival() -> None:
    """As without fair queueing, whatever they cost."""
    queue: FairQueue[int] = FairQueue()
    for number in range(50):
        queue.push(number, flow=f"request {number}", cost=1 + number * 7 % 11, weight=1.0)

    assert [queue.pop() for _ in range(50)] == list(range(50))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_worked_off_follows_the_weights(seed: int) -> None:
    """Between two flows that both wait all the time it differs by one item of each."""
    chance = random.Random(seed)
    queue: FairQueue[tuple[str, int, float]] = FairQueue()
    for name, weight in WEIGHTS.items():
        for number in range(400):
            cost = chance.uniform(1, 50)
            queue.push((name, number, cost), flow=name, cost=cost, weight=weight)
    served: Counter[str] = Counter()
    order = list(queue)

    for place in range(400):
        item = queue.pop()
        assert item == order[place]
        served[item[0]] += item[2]  # type: ignore[assignment] # a Counter of floats
        shares = [served[name] / weight for name, weight in WEIGHTS.items()]
        assert max(shares) - min(shares) <= 50 / 1 + 50 / 2


def test_who_comes_anew_waits_for_one_item_of_each_other_flow() -> None:
    """However much they have waiting, and however long it was away."""
    queue: FairQueue[str] = FairQueue()
    for number in range(800):
        queue.push(f"greedy {number}", flow="greedy", cost=10, weight=1.0)
    for _ in range(100):
        queue.pop()

    queue.push("modest", flow="modest", cost=10, weight=1.0)

    assert "modest" in [queue.pop() for _ in range(2)]


def test_who_waits_is_not_passed_by_an_endless_row_of_newcomers() -> None:
    """Each of them is a flow of its own, as requests without a key are."""
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        queue.push(f"batch {number}", flow="batch", cost=10, weight=1.0)
    for number in range(5):
        queue.push(f"early {number}", flow=f"early {number}", cost=10, weight=1.0)
    left = []

    for number in range(60):
        queue.push(f"late {number}", flow=f"late {number}", cost=10, weight=1.0)
        left.append(queue.pop())

    assert {"batch 0", "batch 1", "batch 2"} <= set(left)


@pytest.mark.parametrize("waiting", [0, 1, 300])
def test_who_has_gone_is_forgotten(waiting: int) -> None:
    """A server that has answered a million requests knows no more of them than a new one."""
    queue: FairQueue[int] = FairQueue()
    for number in range(waiting):
        queue.push(-1 - number, flow=f"early {number}", cost=10, weight=1.0)

    for number in range(10_000):
        queue.push(number, flow=str(number), cost=10, weight=1.0)
        queue.pop()

    assert len(queue) == waiting
    assert queue.num_known < 4 * (waiting + 100)


def test_who_has_left_is_passed_over_and_costs_nothing() -> None:
    """A client that hangs up has not been served."""
    queue: FairQueue[str] = FairQueue()
    for number in range(5):
        queue.push(f"a {number}", flow="a", cost=10, weight=1.0)
        queue.push(f"b {number}", flow="b", cost=10, weight=1.0)
    for number in range(4):
        queue.discard(f"a {number}")

    assert len(queue) == 6
    assert "a 4" in [queue.pop(), queue.pop()]
    assert list(queue) == [f"b {number}" for number in range(1, 5)]
