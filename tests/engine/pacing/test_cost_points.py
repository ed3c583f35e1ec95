"""What a profile measures: always possible steps, few of them, and each term by itself."""

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.pacing.cost_points import CostPoint, cost_points
from paceline_wire.limits import Capacity

MOST = 80
GPU = Capacity(
    max_batch_size=256, max_token_budget=8192, num_blocks=40_000, block_size=16, max_model_len=8192
)


@st.composite
def capacities(draw: st.DrawFn) -> Capacity:
    rows = draw(st.integers(1, 2000))
    return Capacity(
        max_batch_size=rows,
        max_token_budget=draw(st.integers(rows, 20_000)),
        num_blocks=draw(st.integers(1, 20_000)),
        block_size=draw(st.sampled_from([1, 4, 16, 64])),
        max_model_len=draw(st.integers(1, 200_000)),
    )


def by_tokens(point: CostPoint) -> float:
    return point.tokens + point.context / 100


@given(capacities())
def test_every_step_is_one_that_the_engine_could_run(capacity: Capacity) -> None:
    """Rows, tokens, lengths and blocks that were never allocated would break the start."""
    for point in cost_points(capacity, by_tokens):
        assert point.decode + len(point.chunks) <= capacity.max_batch_size
        assert 1 <= point.tokens <= capacity.max_token_budget
        assert sum(point.chunks) == point.prefill
        assert point.num_blocks(capacity.block_size) <= capacity.num_blocks
        assert point.context_each <= capacity.max_model_len
        for chunk in point.chunks:
            assert chunk >= 1
            assert point.prefill_context + chunk <= capacity.max_model_len


@given(capacities())
def test_steps_are_few_and_the_short_come_first(capacity: Capacity) -> None:
    """Whatever the capacity: time is bounded, and what it does not reach is what costs most."""
    points = cost_points(capacity, by_tokens)

    assert len(points) == len(set(points)) <= MOST
    assert [by_tokens(point) for point in points] == sorted(map(by_tokens, points))


def test_each_term_of_the_step_model_is_excited_by_itself() -> None:
    """Equal in all but one: more rows, longer contexts, more prompt tokens, a longer past."""
    points = cost_points(GPU, by_tokens)

    pairs = [(small, large) for small in points for large in points]
    assert any(
        small.decode == large.decode and not large.prefill and small.context < large.context
        for small, large in pairs
    )
    assert any(
        small.prefill == large.prefill and small.decode < large.decode for small, large in pairs
    )
    assert any(
        small.decode == large.decode == 1
        and small.prefill == large.prefill
        and small.context == large.context
        and small.attention < large.attention
        for small, large in pairs
    )
    assert {point.decode for point in points} >= {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert max(point.tokens for point in points) == GPU.max_token_budget


def test_the_features_are_those_of_the_step_model() -> None:
    """As docs/runtime-api.md has them, so that a row can be compared with a step record."""
    point = CostPoint(decode=3, context_each=40, prefill=50, prompt_tokens=20, prefill_context=100)

    assert point.chunks == (20, 20, 10)
    assert point.tokens == 53
    assert point.context == 120
    assert point.attention == 2 * 20 * 110 + 10 * 105
    assert point.num_blocks(16) == 3 * 3 + 8 + 8 + 7
