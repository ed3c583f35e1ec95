"""Where decode turns from reading memory to computing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_cli.diagnose.turning_point import turning_batch
from paceline_wire.step_cost import step_terms

_COST = st.floats(1e-4, 1e3)
_THETA = st.tuples(_COST, _COST, st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
_KNEE, _CONTEXT = st.floats(1, 4096), st.floats(0, 1e5)
_GROWTH = st.floats(1.0, 100.0)


def _gap_ms(theta: tuple[float, ...], knee: float, context: float, batch: float) -> float:
    """By how much the arithmetic of a step outweighs its reading, term by term of the model."""
    fixed, each, above, thousands, _ = step_terms(knee, batch, batch * context, 0.0)
    return theta[1] * each + theta[2] * above - theta[0] * fixed - theta[3] * thousands


@given(_THETA, _KNEE, _CONTEXT)
def test_reading_and_arithmetic_are_equal_there_and_memory_bounds_what_is_smaller(
    theta: tuple[float, ...], knee: float, context: float
) -> None:
    """By the same terms that the engine predicts its steps with."""
    batch = turning_batch(theta, knee, context)

    if batch is None:
        # Steps of the largest engines, and far beyond: still bound by memory.
        assert all(_gap_ms(theta, knee, context, size) < 1e-6 for size in (1.0, 1e3, 1e5))
        return
    scale = theta[0] + (theta[1] + theta[2] + theta[3] * context / 1e3) * batch
    assert abs(_gap_ms(theta, knee, context, batch)) <= 1e-9 * scale
    assert _gap_ms(theta, knee, context, 0.5 * batch) < 0


@given(_THETA, _KNEE, _CONTEXT, st.integers(0, 3), _GROWTH)
def test_dearer_reading_moves_it_up_and_dearer_arithmetic_down(
    theta: tuple[float, ...], knee: float, context: float, which: int, growth: float
) -> None:
    """Monotone in each coefficient; never is later than any batch."""
    dearer = tuple(value * growth if at == which else value for at, value in enumerate(theta))

    before, after = (
        float("inf") if batch is None else batch
        for batch in (turning_batch(theta, knee, context), turning_batch(dearer, knee, context))
    )

    if which in {0, 3}:
        assert after >= before * (1 - 1e-9)
    else:
        assert after <= before * (1 + 1e-9)


@given(_THETA, _KNEE, _CONTEXT, _GROWTH)
def test_longer_contexts_and_a_later_knee_move_it_up(
    theta: tuple[float, ...], knee: float, context: float, growth: float
) -> None:
    """Each sequence reads more before it computes anything."""
    now = turning_batch(theta, knee, context)
    longer = turning_batch(theta, knee, context * growth)
    later = turning_batch(theta, knee * growth, context)

    for moved in (longer, later):
        assert moved is None or (now is not None and moved >= now * (1 - 1e-9))


@pytest.mark.parametrize(
    ("theta", "context", "expected"),
    [
        ((30.0, 2.0, 0.0, 0.0, 0.0), 0.0, 15.0),
        ((30.0, 2.0, 0.0, 4.0, 0.0), 250.0, 30.0),
        ((30.0, 0.0, 0.5, 0.0, 0.0), 0.0, 316.0),
        ((30.0, 2.0, 0.0, 4.0, 0.0), 500.0, None),
    ],
    ids=["weights alone", "contexts too", "above the knee of 256", "contexts outweigh all"],
)
def test_worked_examples(theta: tuple[float, ...], context: float, expected: float | None) -> None:
    """By hand."""
    assert turning_batch(theta, 256, context) == expected
