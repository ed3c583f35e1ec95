"""The slack of the running requests: what is looked up is what the formula says."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing.lane_pace import Slack, slack_ms, step_allowance_ms

PACE_MS = 50.0


def naive_ms(requests: dict[str, tuple[float, int]], pace_ms: float, now: float) -> float | None:
    """Formula by formula: first token at, tokens generated."""
    slacks = sorted(
        (first_at - now) * 1e3 + 0.93 * pace_ms * generated
        for first_at, generated in requests.values()
    )
    return slacks[int(0.2 * (len(slacks) - 1))] if slacks else None


events = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(0, 9), st.integers(1, 50)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 400), st.just(0)),
        st.tuples(st.just("pace"), st.integers(1, 200), st.just(0)),
    ),
    max_size=80,
)


@settings(deadline=None)
@given(events=events)
def test_the_slack_is_the_formula_s_whoever_comes_and_goes(
    events: list[tuple[str, int, int]],
) -> None:
    """Requests begin, end and are preempted, and the pace changes: the order must not be lost."""
    slack, truth = Slack(), dict[str, tuple[float, int]]()
    now, pace_ms = 1000.0, PACE_MS

    for what, number, tokens in events:
        name = str(number)
        if what == "begin" and name not in truth:
            truth[name] = (now - 0.03 * (tokens - 1), tokens)
            slack.begin(name, first_at=truth[name][0], generated=tokens)
        elif what == "end":
            truth.pop(name, None)
            slack.end(name)
        elif what == "step":
            now += number / 1e3
            slack.advance()
            truth = {key: (first_at, count + 1) for key, (first_at, count) in truth.items()}
        elif what == "pace":
            pace_ms = float(number)
        expected, found = naive_ms(truth, pace_ms, now), slack_ms([slack], pace_ms, now)
        assert (found is None) == (expected is None)
        assert found == pytest.approx(expected, abs=1e-6)
        assert len(slack) == len(truth)


@given(
    requests=st.lists(
        st.tuples(st.sampled_from((0, 1)), st.floats(0, 9), st.integers(1, 50)), max_size=30
    ),
    now=st.floats(9, 20),
)
def test_the_slack_of_two_lanes_is_that_of_all_their_requests(
    requests: list[tuple[int, float, int]], now: float
) -> None:
    """Each lane counts its own steps: the batch lane may have left some out."""
    slacks, truth = (Slack(), Slack()), dict[str, tuple[float, int]]()
    slacks[0].advance()
    for number, (lane, first_at, generated) in enumerate(requests):
        slacks[lane].begin(str(number), first_at=first_at, generated=generated)
        truth[str(number)] = first_at, generated

    found = slack_ms(slacks, PACE_MS, now)

    assert found == pytest.approx(naive_ms(truth, PACE_MS, now), abs=1e-6)


@pytest.mark.parametrize(
    ("ahead_ms", "allowed_ms"),
    [
        (60.0, 60.0),
        (-300.0, 45.0),
        (5000.0, 100.0),
        (math.inf, 100.0),
        (-math.inf, 45.0),
        (math.nan, 45.0),
        (None, 45.0),
    ],
)
def test_a_step_may_take_the_slack_within_bounds(ahead_ms: float | None, allowed_ms: float) -> None:
    """Behind, a step still holds some prefill; ahead, no gap looks like a stall."""
    assert step_allowance_ms(ahead_ms, PACE_MS) == allowed_ms
