"""What a load may be beside a rate: bursts, traces, shared beginnings, turns, cancellations."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_cli.traffic.arrivals import Burst
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import OfferedLoad, TokenLengths, plan
from paceline_cli.traffic.prompts import CHARS_PER_TOKEN, SharedPrefix
from paceline_cli.traffic.traces import TracedRequest

LOAD = OfferedLoad(
    rate_rps=4.0,
    cv=1.0,
    prompt_tokens=TokenLengths(median=80, sigma=0.9, min=16, max=600),
    output_tokens=TokenLengths(median=20, sigma=0.5, min=4, max=64),
)
CORPUS = help_topics()


@given(count=st.integers(1, 40), every_s=st.floats(1, 30), duration_s=st.floats(1, 60))
@settings(deadline=None, max_examples=30)
def test_a_burst_comes_at_once_and_then_there_is_silence(
    count: int, every_s: float, duration_s: float
) -> None:
    """200/30s: 200 at 0 s, 200 at 30 s."""
    load = replace(LOAD, burst=Burst(count, every_s))

    times = [one.at_s for one in plan(load, CORPUS, duration_s=duration_s, seed=1)]

    assert len(times) % count == 0
    assert all(abs(at / every_s - round(at / every_s)) < 1e-9 for at in times)
    assert len(set(times)) == len(times) // count


@given(
    gaps=st.lists(st.floats(0.01, 5), min_size=1, max_size=30),
    rate=st.floats(0.5, 8),
    duration_s=st.floats(10, 60),
)
@settings(deadline=None, max_examples=30)
def test_a_trace_keeps_its_pattern_at_the_wanted_rate(
    gaps: list[float], rate: float, duration_s: float
) -> None:
    """It begins again where it is too short; its lengths are its own."""
    trace = [TracedRequest(0.0, 10, 3)]
    for gap in gaps:
        trace.append(TracedRequest(trace[-1].at_s + gap, 10, 3))
    load = replace(LOAD, trace=tuple(trace), rate_rps=rate)

    planned = plan(load, CORPUS, duration_s=duration_s, seed=1)

    assert {one.max_tokens for one in planned} == {3}
    assert [one.at_s for one in planned] == sorted(one.at_s for one in planned)
    assert abs(len(planned) - rate * duration_s) <= len(trace)


def test_prompts_of_one_group_begin_alike() -> None:
    """As those behind one system prompt do, within the length that was asked for."""
    long = TokenLengths(median=200, sigma=0, min=200, max=200)
    load = replace(LOAD, prompt_tokens=long, shared_prefix=SharedPrefix(100, groups=2))

    prompts = [one.prompt for one in plan(load, CORPUS, duration_s=30.0, seed=1)]

    assert len({prompt[:300] for prompt in prompts}) == 2
    assert len(set(prompts)) == len(prompts)
    assert all(abs(len(prompt) - 200 * CHARS_PER_TOKEN) < 160 for prompt in prompts)


def test_clients_leave_as_often_as_asked_and_before_the_end() -> None:
    """2 to 5 % is usual."""
    planned = plan(replace(LOAD, cancelled=0.05), CORPUS, duration_s=600.0, seed=1)

    leaving = [one for one in planned if one.cancel_after is not None]
    assert 0.03 < len(leaving) / len(planned) < 0.07
    assert all(1 <= (one.cancel_after or 0) < one.max_tokens for one in leaving)


def test_lengths_come_in_pairs_from_a_file_and_are_cut() -> None:
    """Long prompts have their own answers."""
    pairs = (TracedRequest(0.0, 10, 3), TracedRequest(1.0, 5000, 90))
    load = replace(LOAD, lengths=pairs, longest_prompt=100)

    planned = plan(load, CORPUS, duration_s=30.0, seed=1)

    assert {one.max_tokens for one in planned} == {3, 90}
    assert max(len(one.prompt) for one in planned) <= 400


def test_a_prompt_may_be_longer_than_the_corpus() -> None:
    """Traces have prompts of 100,000 tokens."""
    load = replace(LOAD, trace=(TracedRequest(0.0, 200_000, 1), TracedRequest(9.0, 1, 1)))

    first, *_ = plan(load, CORPUS, duration_s=1.0, seed=1)

    assert len(first.prompt) > 0.95 * 200_000 * CHARS_PER_TOKEN


def test_a_conversation_has_its_turns() -> None:
    """Each is said after the answer before."""
    planned = plan(replace(LOAD, turns=3), CORPUS, duration_s=5.0, seed=1)

    assert {len(one.turns) for one in planned} == {2}
