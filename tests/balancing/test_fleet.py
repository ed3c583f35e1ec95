"""The sessions that are offered, the caches that they find, and a small fleet as a whole."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from balancing.fleet import Kind, Times, play, traffic
from balancing.pods import FAST, Meter, Pod, Settled, an_engine
from balancing.policies import BY_SESSION, ROUND_ROBIN, a_gateway
from balancing.prefixes import PrefixCache
from balancing.sessions import Sessions, Turn
from paceline_wire.limits import Limits

SETTLED = Settled(2.5, Limits(170, 864, step_target_ms=62.7), 1.06)
TIMES = Times(remembered_s=120.0, begin_s=10.0, end_s=30.0, drain_s=30.0)


def test_a_sessions_prompts_hold_all_that_was_said_before() -> None:
    by_session: dict[int, list[Turn]] = defaultdict(list)
    for turn in Sessions(20.0, seed=1).turns(0.0, 300.0):
        by_session[turn.session].append(turn)

    pairs = [pair for turns in by_session.values() for pair in itertools.pairwise(turns)]
    assert len(pairs) > 1000
    assert all(after.prompt > before.prompt + before.output for before, after in pairs)
    assert all(after.at_s - before.at_s >= 30 for before, after in pairs)
    assert all(after.application == before.application for before, after in pairs)


def test_requests_come_at_the_rate_and_by_chance() -> None:
    """In equal spans a Poisson count varies by as much as its mean."""
    at_s = [turn.at_s for turn in Sessions(50.0, seed=2).turns(0.0, 400.0)]
    counts, _ = np.histogram(at_s, bins=400)

    assert counts.mean() == pytest.approx(50.0, rel=0.03)
    assert counts.var() == pytest.approx(50.0, rel=0.25)


def test_some_sessions_ask_far_more_than_others() -> None:
    """The busiest tenth asks twice as often as it is many, though none within half a minute."""
    counts: dict[int, int] = defaultdict(int)
    for turn in Sessions(20.0, seed=1).turns(0.0, 300.0):
        counts[turn.session] += 1

    busiest = sorted(counts.values(), reverse=True)[: len(counts) // 10]
    assert sum(busiest) > 0.2 * sum(counts.values())


def test_a_cache_finds_the_beginning_and_what_the_session_said() -> None:
    cache = PrefixCache()
    first = Turn(0.0, 1, 1, shared=160, prompt=320, output=32)
    other = Turn(1.0, 2, 1, shared=160, prompt=320, output=32)
    again = Turn(2.0, 1, 1, shared=160, prompt=500, output=32)

    assert cache.find(first) == 0
    cache.keep(first, room=10_000)

    assert cache.find(other) == 160
    assert cache.find(again) == 352


def test_a_cache_drops_what_was_unused_for_longest() -> None:
    cache = PrefixCache()
    turns = [Turn(float(n), n, n, shared=160, prompt=320, output=160) for n in range(4)]
    for turn in turns:
        cache.keep(turn, room=2 * 480)

    assert cache.tokens <= 2 * 480
    assert [cache.find(turn) > 0 for turn in turns] == [False, False, True, True]


def test_a_pods_report_weighs_what_it_can_serve() -> None:
    """The sidecar's own meter, told of a simulated engine: λ over λ/λ* is λ*."""
    pod = Pod(an_engine(FAST, SETTLED, seed=1), Meter(SETTLED))
    for number in range(120):
        pod.take(Turn(number / 2, number, 1, shared=160, prompt=320, output=32))
    pod.advance(60.0)

    assert pod.meter is not None
    report = pod.meter.newest
    assert report is not None
    assert report.utilization == pytest.approx(2.0 / SETTLED.capacity_rps, rel=0.1)
    assert report.rps / report.utilization == pytest.approx(SETTLED.capacity_rps, rel=0.05)


def test_the_same_seed_gives_the_same_run_and_sessions_find_their_prefixes() -> None:
    kinds = [Kind(FAST, SETTLED, 5)]
    offered = traffic(kinds, 0.7, 1, TIMES)
    by_session, again, in_turn = (
        play(kinds, a_gateway(name, 1), offered, 1, times=TIMES, has_reports=False)
        for name in (BY_SESSION, BY_SESSION, ROUND_ROBIN)
    )

    assert by_session == again
    assert by_session.hits > in_turn.hits
    assert by_session.offered_rps == in_turn.offered_rps
    assert max(in_turn.utilization) - min(in_turn.utilization) < max(by_session.utilization) - min(
        by_session.utilization
    )
