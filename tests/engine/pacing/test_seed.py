"""A pacer that starts from coefficients of another engine, right ones and wrong ones."""

import math
import random
from collections.abc import Callable

import pytest

from paceline_engine.pacing import make_pacer
from paceline_engine.pacing.model_pacer import ModelPacer
from paceline_testing.engines import a_135m_info
from paceline_wire import Coefficients, MeasuredStep, StepFeatures
from paceline_wire.limits import Capacity

CAPACITY = Capacity(
    max_batch_size=256, max_token_budget=4096, num_blocks=4096, block_size=16, max_model_len=4096
)


def a_pacer(device: str = "cpu") -> ModelPacer:
    pacer = make_pacer(a_135m_info(device), CAPACITY)
    assert isinstance(pacer, ModelPacer)
    return pacer


Hardware = Callable[[int, int], float]


def laptop_ms(decode: int, prefill: int) -> float:
    """What steps take on a CPU: not the fitted form, but near it."""
    return 40.0 + 4.0 * decode + 1.8 * prefill + 0.02 * math.pow(prefill, 1.3)


def gpu_ms(decode: int, prefill: int) -> float:
    """What steps take on a GPU: most of it is launches."""
    return 9.0 + 0.05 * decode + 0.012 * prefill


def taught(
    pacer: ModelPacer,
    steps: int,
    *,
    true_ms: Hardware = laptop_ms,
    prefills: tuple[int, ...] = (0, 0, 16, 48, 100, 256),
) -> ModelPacer:
    rng = random.Random(1)
    for seq in range(steps):
        decode, prefill = rng.randint(1, 12), rng.choice(prefills)
        ms = true_ms(decode, prefill) * rng.lognormvariate(0.0, 0.05)
        step = MeasuredStep(decode, prefill, decode * 200, prefill * prefill // 2, ms)
        pacer.observe(step, at=seq * 0.1)
    return pacer


def predicted(pacer: ModelPacer, decode: int, prefill: int) -> float:
    return pacer.predict_ms(
        StepFeatures(
            decode=decode, prefill=prefill, context=decode * 200, attention=prefill * prefill // 2
        )
    )


def a_seed(
    *, times: float = 1.0, device: str = "cpu", true_ms: Hardware = laptop_ms
) -> Coefficients:
    """What an engine of the same kind came to after 600 steps."""
    learned = taught(a_pacer(device), 600, true_ms=true_ms).info()
    theta = [value * times for value in learned.theta]
    return Coefficients(theta, learned.knee, list(learned.correction), learned.bin_tokens)


SHAPES = [(1, 0), (6, 0), (12, 48), (6, 256)]


@pytest.mark.parametrize(("decode", "prefill"), SHAPES)
def test_the_first_prediction_is_that_of_the_engine_that_was_measured(
    decode: int, prefill: int
) -> None:
    """Before any step: a new pod knows what the last one knew, to the same tenth."""
    pacer = a_pacer()

    assert pacer.seed(a_seed())

    assert predicted(pacer, decode, prefill) == pytest.approx(laptop_ms(decode, prefill), rel=0.12)


def test_a_seeded_pacer_says_so_and_is_careful() -> None:
    """Not trusted before a fit of its own; predictions are inflated as those of any new engine."""
    pacer = a_pacer()

    pacer.seed(a_seed())

    info = pacer.info()
    assert (info.origin, info.valid, info.q_r) == ("seed", False, 1.3)
    assert "seeded" in info.reason
    assert a_pacer().info().origin == "prior"


def test_steps_that_differ_in_level_alone_do_not_undo_the_seed() -> None:
    """Ten ordinary steps leave the seed where it is: noise is no news."""
    pacer = a_pacer()
    pacer.seed(a_seed())
    before = pacer.info().theta

    taught(pacer, 10)

    assert pacer.info().theta == before
    assert predicted(pacer, 6, 48) == pytest.approx(laptop_ms(6, 48), rel=0.12)


def test_the_first_fit_keeps_what_its_steps_did_not_show() -> None:
    """Twenty decode steps say nothing of prompts: the seed does, better than a datasheet."""
    seeded, plain = a_pacer(), a_pacer()
    seeded.seed(a_seed())

    for pacer in (seeded, plain):
        taught(pacer, 25, prefills=(0,))

    assert seeded.info().origin == plain.info().origin == "fit"
    error = abs(predicted(seeded, 6, 256) / laptop_ms(6, 256) - 1)
    assert error < 0.15
    assert error < abs(predicted(plain, 6, 256) / laptop_ms(6, 256) - 1)


@pytest.mark.parametrize("times", [0.1, 0.3, 3.0, 10.0])
@pytest.mark.parametrize(
    ("device", "true_ms"),
    [("cpu", laptop_ms), ("cuda:NVIDIA A100-SXM4-80GB", gpu_ms)],
    ids=["laptop", "gpu"],
)
def test_a_wrong_seed_is_overcome(times: float, device: str, true_ms: Hardware) -> None:
    """Another machine under the same name must cost seconds, not the service."""
    pacer = a_pacer(device)
    pacer.seed(a_seed(times=times, device=device, true_ms=true_ms))

    taught(pacer, 400, true_ms=true_ms)

    assert pacer.info().origin == "fit"
    assert pacer.info().valid
    for decode, prefill in SHAPES:
        assert predicted(pacer, decode, prefill) == pytest.approx(
            true_ms(decode, prefill), rel=0.15
        )


def test_a_seed_that_is_far_off_keeps_its_form_after_three_steps() -> None:
    """Where a step takes seconds, twenty of them are too long to be wrong."""
    pacer = a_pacer()
    pacer.seed(a_seed(times=5.0))

    taught(pacer, 6)

    assert pacer.info().origin == "seed"
    assert predicted(pacer, 6, 48) == pytest.approx(laptop_ms(6, 48), rel=0.35)


def test_a_term_that_the_seed_calls_free_can_still_be_learned() -> None:
    """A multiple of nothing stays nothing: the anchor must leave room."""
    pacer = a_pacer()
    pacer.seed(Coefficients([40.0, 2.0, 0.0, 0.0, 0.0], 256))

    def true_ms(decode: int, prefill: int) -> float:
        return 40.0 + 2.0 * (decode + prefill) + 0.002 * prefill * prefill

    taught(pacer, 400, true_ms=true_ms, prefills=(0, 64, 256, 1024, 2048))

    assert predicted(pacer, 6, 2048) == pytest.approx(true_ms(6, 2048), rel=0.15)
    assert predicted(pacer, 6, 64) == pytest.approx(true_ms(6, 64), rel=0.15)


def test_a_fit_of_its_own_is_not_given_up_for_a_seed() -> None:
    """What this engine measured is worth more than what another one did."""
    pacer = taught(a_pacer(), 40)
    before = pacer.info()

    assert not pacer.seed(a_seed(times=2.0))

    assert pacer.info() == before


def test_corrections_beyond_the_engines_own_bins_are_left_out() -> None:
    """The other engine may have had a larger budget; a factor outside the usual range is cut."""
    pacer = a_pacer()
    seed = a_seed()

    corrections = [0.0, 9.0] + [1.1] * 5000
    pacer.seed(Coefficients(seed.theta, seed.knee, corrections, seed.bin_tokens))

    correction = pacer.info().correction
    assert len(correction) == len(a_pacer().info().correction)
    assert (correction[0], correction[1], correction[2]) == (0.7, 1.5, 1.1)


def test_corrections_of_other_bins_are_left_out() -> None:
    """What a GPU's tile of 128 tokens costs says nothing of four rows on a CPU."""
    pacer = a_pacer()
    seed = a_seed()

    assert pacer.seed(Coefficients(seed.theta, seed.knee, [1.3] * 9, seed.bin_tokens * 2))

    assert pacer.info().origin == "seed"
    assert set(pacer.info().correction) == {1.0}
