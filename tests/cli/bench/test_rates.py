"""A rate's interval is never narrower than the share of hits in it, and knows a closed loop."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_cli.bench.intervals import draws, wilson
from paceline_cli.bench.rates import Rates

requests = st.lists(st.tuples(st.booleans(), st.floats(1, 100)), min_size=1, max_size=60)


@given(offered=requests, seconds=st.floats(1, 100))
@settings(deadline=None, max_examples=60)
def test_a_rate_is_as_unsure_as_its_share(
    offered: list[tuple[bool, float]], seconds: float
) -> None:
    """Both ends, of requests and of what they bring: a share of hits is in every rate."""
    hits, brings = [hit for hit, _ in offered], [each for _, each in offered]
    rates = Rates(draws(len(offered), num_draws=100), seconds)
    low, high = wilson(sum(hits) / len(hits), len(hits))
    brought = sum(each for hit, each in offered if hit)
    of_a_hit = brought / sum(hits) if any(hits) else 16.0
    slack = 1 + 1e-9

    for found, unit in (
        (rates.of(hits, [1.0] * len(hits), usual=1.0), 1.0),
        (rates.of(hits, brings, usual=16.0), of_a_hit),
    ):
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        assert found.low <= low * unit * len(hits) / seconds * slack
        assert found.high * slack >= high * unit * len(hits) / seconds
        assert found.low <= found.value * slack
        assert found.value <= found.high * slack
    assert rates.of(hits, brings).value == pytest.approx(brought / seconds)


def test_without_a_hit_the_upper_end_is_what_one_would_bring() -> None:
    """None of 400 may be 1 of 100; where nobody was answered none knows how long answers are."""
    rates = Rates(draws(400), 100.0)
    nobody, nothing = [False] * 400, [0.0] * 400

    assert rates.of(nobody, nothing, usual=20.0).high == pytest.approx(0.0095 * 4 * 20, rel=0.01)
    assert rates.of(nobody, nothing).high is None


def test_a_closed_loop_is_as_unsure_as_its_pace() -> None:
    """Slow requests let fewer begin; in an open loop the plan says how many begin."""
    drawn = random.Random(3)
    lasted_s = [drawn.expovariate(1.0) for _ in range(400)]
    everybody, ones = [True] * 400, [1.0] * 400

    opened, closed = (
        Rates(draws(400), sum(lasted_s), each).of(everybody, ones) for each in (None, lasted_s)
    )

    assert closed.value == pytest.approx(opened.value)
    assert opened.low is not None
    assert opened.high == pytest.approx(opened.value)
    assert closed.low is not None
    assert closed.high is not None
    assert closed.value is not None
    assert closed.low < 0.95 * closed.value < 1.05 * closed.value < closed.high
