"""Which pod each policy chooses."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from balancing.policies import (
    BY_PREFIX,
    BY_SESSION,
    BY_UTILIZATION,
    NAMES,
    ROUND_ROBIN,
    LeastRequest,
    a_gateway,
)
from balancing.ring import Ring
from balancing.sessions import Turn
from balancing.weights import Report

NAMED = tuple(f"pod-{number}" for number in range(50))


@dataclass(frozen=True, slots=True)
class StillPods:
    """Pods whose load does not change."""

    names: tuple[str, ...]
    busy: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()

    def active(self, pod: int, now_s: float) -> int:
        del now_s
        return self.busy[pod]

    def report(self, pod: int, now_s: float) -> Report | None:
        return Report(now_s, self.rates[pod], 1.0) if self.rates else None


def a_turn(at_s: float = 0.0, *, session: int = 1, application: int = 1) -> Turn:
    return Turn(at_s, session, application, shared=100, prompt=200, output=10)


def test_the_ring_moves_few_sessions_when_a_pod_leaves() -> None:
    """Those of the pod that left, and nobody else's."""
    before, after = Ring(NAMED), Ring(NAMED[:-1])
    keys = [f"session {number}" for number in range(5000)]

    moved = [key for key in keys if NAMED[before.find(key)] != NAMED[after.find(key)]]

    gone = [key for key in keys if before.find(key) == len(NAMED) - 1]
    # The ring is 1,024 places shared by the pods: with 49 instead of 50 each has as many.
    assert set(moved) == set(gone)
    assert 0 < len(moved) < 0.05 * len(keys)


def test_every_pod_has_some_of_the_ring() -> None:
    ring = Ring(NAMED)
    counts = Counter(ring.find(f"session {number}") for number in range(20_000))

    assert len(counts) == len(NAMED)
    assert max(counts.values()) < 3 * 20_000 / len(NAMED)


def test_round_robin_of_one_worker_takes_everyone_in_turn() -> None:
    gateway, pods = a_gateway(ROUND_ROBIN, 1, workers=1), StillPods(NAMED)

    chosen = [gateway.choose(a_turn(), pods) for _ in NAMED]

    assert sorted(chosen) == list(range(len(NAMED)))


def test_least_request_never_takes_the_busiest_alone() -> None:
    """The busiest is taken only where both draws fall on it: one time in sixteen of four pods."""
    policy = LeastRequest(random.Random(1))
    pods = StillPods(NAMED[:4], busy=(9, 3, 2, 1))

    counts = Counter(policy.choose(a_turn(), pods) for _ in range(4000))

    assert counts[3] > counts[2] > counts[1] > counts[0] > 0
    assert counts[0] == pytest.approx(4000 / 16, rel=0.3)


def test_a_session_stays_where_it_is_and_an_application_too() -> None:
    """Whichever worker of the gateway gets the request."""
    pods = StillPods(NAMED)
    for name, turns in (
        (BY_SESSION, [a_turn(session=7, application=n) for n in range(50)]),
        (BY_PREFIX, [a_turn(session=n, application=7) for n in range(50)]),
    ):
        gateway = a_gateway(name, 1)
        assert len({gateway.choose(turn, pods) for turn in turns}) == 1


def test_requests_follow_the_reported_capacities() -> None:
    """Once the blackout is over; before it everyone gets as many."""
    pods = StillPods(NAMED[:3], rates=(2.0, 4.0, 10.0))
    gateway = a_gateway(BY_UTILIZATION, 1)
    early = Counter(gateway.choose(a_turn(n / 300), pods) for n in range(600))
    late = Counter(gateway.choose(a_turn(20 + n / 300), pods) for n in range(1600))

    assert all(abs(early[pod] - 200) <= 30 for pod in range(3))
    assert all(abs(late[pod] - share) <= 40 for pod, share in ((0, 200), (1, 400), (2, 1000)))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_chooses_the_same(name: str) -> None:
    pods = StillPods(NAMED, busy=tuple(range(50)), rates=(2.0,) * 25 + (5.0,) * 25)
    turns = [a_turn(n / 10, session=n, application=n) for n in range(300)]

    one, other = (
        [gateway.choose(turn, pods) for turn in turns]
        for gateway in (a_gateway(name, 3), a_gateway(name, 3))
    )

    assert one == other
