"""The pacer keeps its promises whatever it is told, and its target once it has seen steps."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing import StepShape, make_pacer
from paceline_engine.pacing.model_pacer import ModelPacer
from paceline_testing.engines import a_135m_info
from paceline_wire import MeasuredStep, StepFeatures
from paceline_wire.limits import Capacity, Limits

CAPACITY = Capacity(
    max_batch_size=256, max_token_budget=4096, num_blocks=4096, block_size=16, max_model_len=4096
)


def a_pacer(device: str = "cpu") -> ModelPacer:
    pacer = make_pacer(a_135m_info(device), CAPACITY)
    assert isinstance(pacer, ModelPacer)
    return pacer


def a_step(decode: int, prefill: int = 0, *, ms: float) -> MeasuredStep:
    return MeasuredStep(decode, prefill, decode * 200, prefill * prefill // 2, ms)


def laptop_ms(decode: int, prefill: int) -> float:
    """A CPU that is not the fitted line: tiles of 16 tokens, a dear row, a bent attention."""
    tiles = math.ceil(prefill / 16)
    return 38.0 + 4.0 * decode + 28.0 * tiles + 0.02 * math.pow(prefill, 1.3)


def taught(pacer: ModelPacer, steps: int, *, slower: float = 1.0, seed: int = 1) -> ModelPacer:
    rng = random.Random(seed)
    for seq in range(steps):
        decode = rng.randint(0, 12)
        prefill = rng.choice([0, 0, 16, 48, 100, 256]) if decode else 64
        wall = slower * laptop_ms(decode, prefill) * rng.lognormvariate(0.0, 0.08)
        pacer.observe(a_step(decode, prefill, ms=wall), at=seq * 0.1)
    return pacer


numbers = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.floats(min_value=0.01, max_value=1e4)
)
counts = st.one_of(st.integers(-5, 300), st.integers(0, 10**12))
observed = st.tuples(
    st.builds(MeasuredStep, counts, counts, counts, counts, numbers), numbers, st.booleans()
)
shapes = st.builds(
    StepShape,
    decode=st.integers(0, 256),
    context=st.integers(0, 256 * 4096),
    prefill_wanted=st.integers(0, 10**6),
    prompts=st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 4096)), max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(observed, max_size=60),
    shape=shapes,
    budget=st.integers(256, 4096),
    targets=st.tuples(st.floats(0.001, 1e5), st.floats(0.001, 1e5)),
)
def test_the_total_is_bounded_and_grows_with_the_target(
    steps: list[tuple[MeasuredStep, float, bool]],
    shape: StepShape,
    budget: int,
    targets: tuple[float, float],
) -> None:
    """Decodes always run, the budget always holds, and more time never means fewer tokens."""
    pacer = a_pacer("NVIDIA H200")
    for step, at, clean in steps:
        pacer.observe(step, at=at, clean=clean)

    low, high = (
        pacer.token_total(shape, Limits(256, budget, step_target_ms=target))
        for target in sorted(targets)
    )

    assert shape.decode <= low <= high <= budget
    info = pacer.info()
    figures = [*info.theta, *info.correction, info.fast, info.q_r, info.mape]
    assert all(math.isfinite(value) and value >= 0 for value in figures)
    assert pacer.predict_ms(StepFeatures(8, 64, 1000, 2048)) > 0


def test_a_step_with_no_decode_takes_the_whole_budget() -> None:
    """Nobody waits for a next token: there is no pace to keep."""
    shape = StepShape(decode=0, context=0, prefill_wanted=4000)

    assert a_pacer().token_total(shape, Limits(16, 2048, step_target_ms=1.0)) == 2048


def test_without_a_target_only_the_budget_bounds() -> None:
    """A service without an ITL or TPOT target paces nothing."""
    shape = StepShape(decode=8, context=800, prefill_wanted=4000)

    assert a_pacer().token_total(shape, Limits(16, 2048)) == 2048


@pytest.mark.parametrize(("device", "least"), [("cpu", 16), ("NVIDIA H200", 64)])
def test_prefill_never_starves(device: str, least: int) -> None:
    """A target below one decode step must not leave prompts waiting for ever."""
    shape = StepShape(decode=8, context=8000, prefill_wanted=4000)

    assert a_pacer(device).token_total(shape, Limits(16, 2048, step_target_ms=0.01)) == 8 + least


@pytest.mark.parametrize("target_ms", [150.0, 300.0, 600.0])
def test_steps_keep_their_target_after_twenty_steps(target_ms: float) -> None:
    """A laptop of unknown speed is paced within its first seconds."""
    pacer = taught(a_pacer(), 40)
    shape = StepShape(decode=6, context=1200, prefill_wanted=2000)

    total = pacer.token_total(shape, Limits(16, 2048, step_target_ms=target_ms))

    assert pacer.info().valid
    assert laptop_ms(6, total - 6) <= target_ms * 1.1
    assert total > 6 + 16


def test_a_hot_neighbour_is_followed_within_a_minute_of_steps() -> None:
    """A level that moved by a third belongs to the fast factor, not to a refusal to predict."""
    pacer = taught(taught(a_pacer(), 300), 150, slower=1.35, seed=2)

    predicted = pacer.predict_ms(
        StepFeatures(decode=6, prefill=48, context=1200, attention=48 * 24)
    )

    assert pacer.info().valid
    assert predicted == pytest.approx(1.35 * laptop_ms(6, 48), rel=0.2)


def test_an_engine_three_times_slower_is_learned_anew() -> None:
    """Outliers that do not stop are the new normal, not outliers."""
    pacer = taught(taught(a_pacer(), 300), 300, slower=3.0, seed=2)

    predicted = pacer.predict_ms(
        StepFeatures(decode=6, prefill=48, context=1200, attention=48 * 24)
    )

    assert predicted == pytest.approx(3.0 * laptop_ms(6, 48), rel=0.25)


def test_a_stalled_step_teaches_nothing() -> None:
    """One page fault of two seconds must not change what a step is predicted to take."""
    pacer = taught(a_pacer(), 300)
    before = pacer.predict_ms(StepFeatures(6, 48, 1200, 1152))

    pacer.observe(a_step(6, 48, ms=2000.0), at=30.1)

    after = pacer.predict_ms(StepFeatures(6, 48, 1200, 1152))
    assert after == pytest.approx(before, rel=0.05)


def test_a_steady_decode_keeps_the_cost_of_prefill() -> None:
    """Thousands of equal steps later, the next prompt is still paced rightly."""
    pacer = taught(a_pacer(), 300)
    rng = random.Random(5)
    for seq in range(3000):
        wall = laptop_ms(6, 0) * rng.lognormvariate(0.0, 0.08)
        pacer.observe(a_step(6, ms=wall), at=100.0 + seq * 0.1)

    predicted = pacer.predict_ms(
        StepFeatures(decode=6, prefill=256, context=1200, attention=32_768)
    )

    assert predicted == pytest.approx(laptop_ms(6, 256), rel=0.25)


def test_the_safety_factor_covers_nineteen_of_twenty_steps() -> None:
    """q_r is what makes a target hold at its tail."""
    pacer = taught(a_pacer(), 600)
    rng = random.Random(9)
    over = 0
    for _ in range(1000):
        decode, prefill = rng.randint(1, 12), rng.choice([0, 0, 16, 48, 100, 256])
        wall = laptop_ms(decode, prefill) * rng.lognormvariate(0.0, 0.08)
        predicted = pacer.predict_ms(
            StepFeatures(
                decode=decode,
                prefill=prefill,
                context=decode * 200,
                attention=prefill * prefill // 2,
            )
        )
        over += wall > predicted * pacer.info().q_r

    assert over < 90
