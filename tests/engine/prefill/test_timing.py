"""What is timed of prefill attention, and what is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.attention.prefill.prompts import PromptChunk, ScoreRules
from paceline_engine.attention.prefill.timing import LayerTimes, is_worth_it
from paceline_engine.attention.prefill.trial_steps import LENGTHS, timed_laters, timed_wholes

FULL = ScoreRules(1.0)
SECONDS = st.floats(1e-6, 1.0)
TIMES = st.builds(LayerTimes, SECONDS, SECONDS)


@pytest.mark.parametrize("most", [64, 100, 2048, 8192])
def test_a_timed_step_has_prompts_of_one_length(most: int) -> None:
    """As many as a step has tokens for."""
    for step in timed_wholes(most):
        assert len(set(step.chunks)) == 1
        assert all(chunk.is_whole for chunk in step.chunks)
        length = step.chunks[0].tokens
        assert length * len(step.chunks) <= max(length, min(2048, most))
    assert [step.chunks[0].tokens for step in timed_wholes(most)] == [
        length for length in LENGTHS if length <= most
    ]


def test_unseen_steps_are_of_lengths_that_are_not_timed() -> None:
    """Shorter by a little, and no length in two of them."""
    seen = {PromptChunk(length, length) for length in LENGTHS}
    for step in timed_wholes(8192):
        for others in step.unseen:
            fresh = set(others)
            assert not fresh & seen
            assert len(fresh) == min(8, len(step.chunks))
            assert min(chunk.tokens for chunk in fresh) >= step.chunks[0].tokens - 8
            seen |= fresh


@pytest.mark.parametrize("most", [(100, 9000), (300, 9000), (8192, 1000), (8192, 32_768)])
def test_later_chunks_are_timed_as_far_as_steps_go(most: tuple[int, int]) -> None:
    """One chunk a step, behind something; those that are like it are a little smaller."""
    steps = list(timed_laters(*most))

    tokens, context = most
    assert len(steps) == {100: 0, 300: 2}.get(tokens, 0 if context == 1000 else 8)
    for step in steps:
        ((one,), sizes) = step.chunks, {step.chunks, *step.unseen}
        assert one.tokens <= tokens
        assert one.tokens < one.context <= context
        assert len(sizes) == 4
        for (other,) in step.unseen:
            assert one.tokens - 3 <= other.tokens < other.context < one.context


@given(ours=TIMES, other=TIMES, count=st.integers(1, 80))
def test_sdpa_serves_where_it_takes_at_most_95_per_cent(
    ours: LayerTimes, other: LayerTimes, count: int
) -> None:
    """A step's time counts whole: its first layer, and all others."""
    chosen = is_worth_it({FULL: ours}, {FULL: other}, {FULL: count})

    theirs = other.first_s + (count - 1) * other.again_s
    assert chosen == (theirs <= 0.95 * (ours.first_s + (count - 1) * ours.again_s))
