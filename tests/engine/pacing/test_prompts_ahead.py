"""A chunk of a prompt costs what lies before it, cached tokens included."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing import StepShape
from paceline_engine.pacing.prompts_ahead import shared_attention
from paceline_engine.pacing.residuals import Residuals
from paceline_engine.pacing.totals import Totals
from paceline_wire.step_cost import StepModel, chunk_attention

MODEL = StepModel((8.0, 0.01, 0.04, 0.06, 0.9), 256)


@pytest.mark.parametrize(
    ("prompts", "tokens", "chunks"),
    [
        ([(500, 4000)], 300, [(300, 4000)]),
        ([(100, 0), (900, 7000)], 400, [(100, 0), (300, 7000)]),
        ([(900, 0), (900, 7000)], 400, [(200 + 100, 0), (100, 7000)]),
        ([], 300, [(300, 0)]),
        ([(100, 50)], 300, [(100, 50), (200, 0)]),
    ],
    ids=["one", "one done and one begun", "two begun", "nothing known", "more than is known"],
)
def test_pairs_are_those_of_the_chunks_that_prompts_get(
    prompts: list[tuple[int, int]], tokens: int, chunks: list[tuple[int, int]]
) -> None:
    """As the scheduler shares a step: half to whom it cannot finish, the rest to the first."""
    pairs = shared_attention(prompts, len(prompts), tokens)

    assert pairs == sum(chunk_attention(chunk, before) for chunk, before in chunks)


@settings(max_examples=200, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 60_000)), max_size=8),
    tokens=st.integers(0, 8192),
)
def test_no_chunk_costs_less_than_at_its_prompts_start(
    prompts: list[tuple[int, int]], tokens: int
) -> None:
    """Whatever is cached makes attention dearer, never cheaper."""
    at_start = [(remaining, 0) for remaining, _ in prompts]

    pairs = shared_attention(prompts, len(prompts), tokens)

    assert pairs >= shared_attention(at_start, len(prompts), tokens)


def test_a_step_holds_fewer_tokens_of_a_prompt_that_was_cached() -> None:
    """Or it would take longer than its target by all that its tokens attend to."""
    totals = [
        Totals(
            MODEL, Residuals(2048, 64), StepShape(20, 8000, 9000, [(9000, before)]), allowed_ms=50.0
        ).most(2048)
        for before in (0, 12_000)
    ]

    assert totals[1] < 0.9 * totals[0]
