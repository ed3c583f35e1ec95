"""What a profile measures: always possible steps, few of them, and each term by itself."""

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.profiling.probe_steps import ProbeStep, probe_steps
from paceline_wire import StepFeatures
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


def by_tokens(step: ProbeStep) -> float:
    return step.features.tokens + step.features.context / 100


@given(capacities())
def test_every_step_is_one_that_the_engine_could_run(capacity: Capacity) -> None:
    """Rows, tokens, lengths and blocks that were never allocated would break the start."""
    for step in probe_steps(capacity, by_tokens):
        assert step.decode + len(step.chunks) <= capacity.max_batch_size
        assert 1 <= step.features.tokens <= capacity.max_token_budget
        assert sum(step.chunks) == step.prefill
        assert step.num_blocks(capacity.block_size) <= capacity.num_blocks
        assert step.context_each <= capacity.max_model_len
        for chunk in step.chunks:
            assert chunk >= 1
            assert step.prefill_context + chunk <= capacity.max_model_len


@given(capacities())
def test_steps_are_few_and_the_short_come_first(capacity: Capacity) -> None:
    """Whatever the capacity: time is bounded, and what it does not reach is what costs most."""
    steps = probe_steps(capacity, by_tokens)

    assert len(steps) == len(set(steps)) <= MOST
    assert [by_tokens(step) for step in steps] == sorted(map(by_tokens, steps))


def test_each_term_of_the_step_model_is_excited_by_itself() -> None:
    """Equal in all but one: more rows, longer contexts, more prompt tokens, a longer past."""
    steps = probe_steps(GPU, by_tokens)

    pairs = [(small, large) for small in steps for large in steps]
    assert any(
        small.decode == large.decode
        and not large.prefill
        and small.features.context < large.features.context
        for small, large in pairs
    )
    assert any(
        small.prefill == large.prefill and small.decode < large.decode for small, large in pairs
    )
    assert any(
        small.decode == large.decode == 1
        and small.prefill == large.prefill
        and small.features.context == large.features.context
        and small.features.attention < large.features.attention
        for small, large in pairs
    )
    assert {step.decode for step in steps} >= {1, 2, 4, 8, 16, 32, 64, 128, 256}
    assert max(step.features.tokens for step in steps) == GPU.max_token_budget


def test_the_features_are_those_of_the_step_model() -> None:
    """As docs/runtime-api.md has them, so that a profile can be compared with step records."""
    step = ProbeStep(decode=3, context_each=40, prefill=50, prompt_tokens=20, prefill_context=100)

    assert step.chunks == (20, 20, 10)
    assert step.features == StepFeatures(3, 50, 120, 2 * 20 * 110 + 10 * 105)
    assert step.features.tokens == 53
    assert step.num_blocks(16) == 3 * 3 + 8 + 8 + 7
