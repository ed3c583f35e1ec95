"""The fit finds what made the steps, and stays near what it knew where nothing tells it."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing.fit import SampleStore, _ratios, fit
from paceline_engine.pacing.prior import Prior
from paceline_wire import MeasuredStep, StepFeatures
from paceline_wire.step_cost import StepModel, chunk_attention

TRUTH = StepModel((5.0, 0.004, 0.03, 0.05, 2.0), knee=256)


def a_prior(*, off_by: float = 0.7, is_guess: bool = False) -> Prior:
    return Prior(
        TRUTH.scaled(off_by),
        low=(0.3,) * 5,
        high=(4.0,) * 5,
        is_guess=is_guess,
        max_mape=0.15,
        max_q_r=1.5,
        min_prefill=64,
    )


def steps(model: StepModel, count: int, *, noise: float, seed: int = 7) -> list[MeasuredStep]:
    """Steps of many sizes, as a warm-up with mixed traffic gives them."""
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        decode = rng.randint(1, 128)
        chunk = rng.choice([0, 0, 64, 200, 500, 1000, 2000])
        context = decode * rng.randint(100, 3000)
        attention = int(chunk_attention(chunk, rng.randint(0, 4000)))
        ms = model.ms(StepFeatures(decode, chunk, context, attention)) * rng.gauss(1.0, noise)
        samples.append(MeasuredStep(decode, chunk, context, attention, ms))
    return samples


def test_planted_coefficients_are_recovered_within_five_percent() -> None:
    """Three percent of noise and a prior 30 % low must not hide what each term costs."""
    result = fit(steps(TRUTH, 1500, noise=0.03), steps(TRUTH, 50, noise=0.03, seed=8), a_prior())

    assert result.refusal == ""
    assert result.model.theta == pytest.approx(TRUTH.theta, rel=0.05)


def test_a_guessed_prior_is_scaled_to_the_hardware() -> None:
    """A laptop may be ten times slower than assumed; its first steps tell."""
    prior = a_prior(off_by=0.1, is_guess=True)

    result = fit(steps(TRUTH, 400, noise=0.1), [], prior)

    assert result.refusal == ""
    assert result.prior.theta == pytest.approx(TRUTH.theta, rel=0.15)


def test_one_repeated_step_leaves_the_other_coefficients_at_their_prior() -> None:
    """Loss of excitation: a loop that has settled must not invent the cost of prefill."""
    ms = TRUTH.ms(StepFeatures(32, 0, 32_000, 0))
    same = [MeasuredStep(32, 0, 32_000, 0, ms)] * 500

    result = fit(same, [], a_prior(off_by=1.0))

    assert result.model.theta == pytest.approx(TRUTH.theta, rel=0.01)


def test_the_store_remembers_sizes_that_are_no_longer_run() -> None:
    """Thousands of equal steps push out only their own kind."""
    store = SampleStore()
    for sample in steps(TRUTH, 400, noise=0.03):
        store.add(sample)
    for _ in range(5000):
        store.add(MeasuredStep(32, 0, 32_000, 0, 6.7))

    training, holdout = store.split()
    result = fit(training, holdout, a_prior())

    assert result.refusal == ""
    forgotten = StepFeatures(decode=0, prefill=2000, context=1000, attention=2_000_000)
    assert result.model.ms(forgotten) == pytest.approx(TRUTH.ms(forgotten), rel=0.05)


def test_a_form_that_does_not_hold_is_refused() -> None:
    """Steps that take half or twice as long at equal size must not become a model."""
    rng = random.Random(3)
    wild = [
        msgspec.structs.replace(sample, wall_ms=sample.wall_ms * rng.choice([0.5, 2.0]))
        for sample in steps(TRUTH, 300, noise=0.03)
    ]

    assert "holdout error" in fit(wild, wild[:50], a_prior()).refusal


def test_a_fit_held_by_its_bounds_is_refused() -> None:
    """Hardware a hundred times slower than its datasheet is a wrong prior, not a measurement."""
    result = fit(steps(TRUTH, 300, noise=0.03), [], a_prior(off_by=0.01))

    assert "at their bounds" in result.refusal


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            MeasuredStep,
            st.integers(1, 500),
            st.integers(0, 5000),
            st.integers(0, 10**6),
            st.integers(0, 10**8),
            st.floats(0.01, 1e4),
        ),
        min_size=1,
        max_size=9,
    ),
    st.tuples(*[st.floats(0.001, 10.0)] * 5),
)
def test_columns_round_as_the_step_model_does(
    samples: list[MeasuredStep], theta: tuple[float, float, float, float, float]
) -> None:
    """A fit judges its line by what the pacer will predict with it, to the last bit."""
    model = StepModel(theta, knee=256)

    one_by_one = [sample.wall_ms / model.ms(sample) for sample in samples]

    assert _ratios(samples, model).tolist() == one_by_one
