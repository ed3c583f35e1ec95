"""What is timed of prefill attention, and what is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.attention.prefill.prompts import ScoreRules
from paceline_engine.attention.prefill.timing import LayerTimes, is_worth_it
from paceline_engine.attention.prefill.trial_steps import LENGTHS, timed_lengths, unseen

FULL = ScoreRules(1.0)
SECONDS = st.floats(1e-6, 1.0)
TIMES = st.builds(LayerTimes, SECONDS, SECONDS)


@pytest.mark.parametrize("most", [64, 100, 2048, 8192])
def test_a_timed_step_has_prompts_of_one_length(most: int) -> None:
    """As many as a step has tokens for."""
    for length, lengths in timed_lengths(most):
        assert set(lengths) == {length}
        assert sum(lengths) <= max(length, min(2048, most))
    assert [length for length, _ in timed_lengths(most)] == [
        length for length in LENGTHS if length <= most
    ]


def test_unseen_steps_are_of_lengths_that_are_not_timed() -> None:
    """Shorter by a little, and no length in two of them."""
    seen: set[int] = set(LENGTHS)
    for length, lengths in timed_lengths(8192):
        for others in unseen(lengths):
            fresh = set(others)
            assert not fresh & seen
            assert len(fresh) == min(8, len(lengths))
            assert min(fresh) >= length - 8
            seen |= fresh


@given(ours=TIMES, other=TIMES, count=st.integers(1, 80))
def test_sdpa_serves_where_it_takes_at_most_95_per_cent(
    ours: LayerTimes, other: LayerTimes, count: int
) -> None:
    """A step's time counts whole: its first layer, and all others."""
    chosen = is_worth_it({FULL: ours}, {FULL: other}, {FULL: count})

    theirs = other.first_s + (count - 1) * other.again_s
    assert chosen == (theirs <= 0.95 * (ours.first_s + (count - 1) * ours.again_s))
