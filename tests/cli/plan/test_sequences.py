"""Sequences that fit with pages and without, and what last blocks waste."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_cli.plan.sequences import last_blocks, preallocated_batch
from paceline_cli.traffic.traces import TracedRequest

_LENGTHS = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 100)), min_size=1, max_size=5)


@given(_LENGTHS, st.integers(1, 64))
def test_the_waste_is_that_of_every_step_one_by_one(
    lengths: list[tuple[int, int]], block: int
) -> None:
    """The closed form, against counting."""
    requests = [TracedRequest(0.0, prompt, output) for prompt, output in lengths]
    held = [
        length for prompt, output in lengths for length in range(prompt + 1, prompt + output + 1)
    ]

    found = last_blocks(requests, block)

    assert found.unused_tokens == pytest.approx(sum(-each % block for each in held) / len(held))
    room = sum(-(-each // block) * block for each in held)
    assert found.held_tokens == pytest.approx(room / len(held))
    assert 0 <= found.share < 1


@given(st.integers(0, 10**7), st.integers(1, 10**5), st.integers(1, 64))
def test_preallocated_sequences_fit_and_one_more_does_not(
    kv_tokens: int, longest: int, block: int
) -> None:
    """Each takes whole blocks."""
    count = preallocated_batch(kv_tokens, longest, block)
    each = -(-longest // block) * block

    assert count * each <= kv_tokens < (count + 1) * each
