"""The knee of the step-time line follows the engine, seldom and for a reason."""

import math
import random

import pytest
from msgspec.structs import replace

from paceline_engine.pacing import make_pacer
from paceline_engine.pacing.knee import KneeWatch, best_knee
from paceline_engine.pacing.model_pacer import ModelPacer
from paceline_engine.pacing.prior import prior_for
from paceline_wire import MeasuredStep, ModelInfo, StepFeatures
from paceline_wire.limits import Capacity

INFO = ModelInfo(
    "m", "llama", "", "bfloat16", "NVIDIA H100", 8 * 10**9, 1, 4096, 1, [2], 131_072, 16 * 10**9
)
CAPACITY = Capacity(256, 4096, 4096, 16, 4096)


def step_ms(tokens: int, knee: int) -> float:
    """Flat until the knee, steep above it."""
    return 9.0 + 0.002 * tokens + 0.03 * max(0, tokens - knee)


def samples(knee: int, count: int, seed: int, *, noise: float = 0.03) -> list[MeasuredStep]:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 1500) for _ in range(count)]
    return [
        MeasuredStep(1, tokens - 1, 0, 0, step_ms(tokens, knee) * rng.lognormvariate(0.0, noise))
        for tokens in sizes
    ]


def served(pacer: ModelPacer, steps: int, knee: int) -> ModelPacer:
    for seq, step in enumerate(samples(knee, steps, 3)):
        pacer.observe(step, at=seq * 0.02)
    return pacer


@pytest.mark.parametrize("knee", [128, 256, 512])
def test_the_knee_that_predicts_best_is_chosen(knee: int) -> None:
    """Whichever it is, and from the default in each case."""
    prior = prior_for(INFO)

    assert prior.model.knee == 256
    assert best_knee(samples(knee, 300, 1), samples(knee, 60, 2), prior) == knee


def test_noise_does_not_turn_the_knee() -> None:
    """A straight line fits alike whatever the knee: then it stays."""
    straight = [replace(sample, wall_ms=20.0) for sample in samples(256, 300, 1)]

    for seed in range(5):
        rng = random.Random(seed)
        noisy = [replace(s, wall_ms=20.0 * rng.lognormvariate(0.0, 0.05)) for s in straight]
        assert best_knee(noisy[:240], noisy[240:], prior_for(INFO)) == 256


def test_an_engine_whose_knee_is_at_512_is_learned() -> None:
    """From its own steps, and predicted better at the knee than before."""
    pacer = make_pacer(INFO, CAPACITY)
    assert isinstance(pacer, ModelPacer)
    before = served(pacer, 1_900, 512).info()
    error_before = abs(pacer.predict_ms(StepFeatures(1, 511, 0, 0)) - 10.024)

    after = served(pacer, 400, 512).info()
    error_after = abs(pacer.predict_ms(StepFeatures(1, 511, 0, 0)) - 10.024)

    assert (before.knee, after.knee) == (256, 512)
    assert after.valid
    assert after.theta[2] == pytest.approx(0.03, rel=0.15)
    assert error_after < 0.3
    assert error_after < error_before


def test_an_engine_that_turns_where_assumed_keeps_its_knee() -> None:
    """Looking costs nothing where there is nothing to find."""
    pacer = make_pacer(INFO, CAPACITY)
    assert isinstance(pacer, ModelPacer)

    assert served(pacer, 2_500, 256).info().knee == 256


def test_the_knee_is_looked_at_seldom() -> None:
    """Once there are enough steps, then each 20,000 or each hour; a broken clock is no hour."""
    watch = KneeWatch()

    looked = [steps for steps in range(0, 50_000, 200) if watch.is_due(steps, steps * 0.02)]
    assert looked == [2_000, 22_000, 42_000]
    assert not watch.is_due(42_200, 42_000 * 0.02 + 3_599)
    assert watch.is_due(42_400, 42_000 * 0.02 + 3_601)
    assert not watch.is_due(42_600, math.nan)
    assert not watch.is_due(42_600, -math.inf)
