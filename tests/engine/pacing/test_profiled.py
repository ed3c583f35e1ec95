"""A pacer that starts from a profile: priced from the first request on, and outvoted by steps."""

import pytest

from paceline_engine.core.request import Request
from paceline_engine.drafting.ngram import NgramProposer
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.pacing import StepShape, make_pacer
from paceline_engine.pacing.model_pacer import ModelPacer
from paceline_engine.profiling.probe_steps import ProbeStep, probe_steps
from paceline_engine.profiling.profile import measured_steps
from paceline_testing.engines import a_135m_info
from paceline_wire import Coefficients, MeasuredStep, Sampling, StepFeatures
from paceline_wire.limits import Capacity, Limits

CAPACITY = Capacity(
    max_batch_size=256, max_token_budget=4096, num_blocks=4096, block_size=16, max_model_len=4096
)
H100 = "cuda:NVIDIA H100"
Theta = tuple[float, float, float, float, float]

# The datasheet expects 3.3 ms and 0.01 ms a token of this model.
SLOW_HOST: Theta = (14.0, 0.02, 0.002, 0.01, 0.05)
BUSY: Theta = (4.0, 0.5, 0.0, 0.01, 0.05)
LAPTOP: Theta = (35.0, 2.2, 0.0, 1.8, 40.0)


def a_pacer(device: str = H100) -> ModelPacer:
    pacer = make_pacer(a_135m_info(device), CAPACITY)
    assert isinstance(pacer, ModelPacer)
    return pacer


def true_ms(theta: Theta, tokens: int, context: int, attention: int) -> float:
    th0, th1, th2, th3, th4 = theta
    above = max(0, tokens - 256)
    return th0 + th1 * tokens + th2 * above + th3 * context / 1e3 + th4 * attention / 1e6


def a_profile(theta: Theta, *, most_ms: float = 1e9) -> tuple[MeasuredStep, ...]:
    """What a profile of such an engine finds, of steps up to `most_ms`."""
    steps = probe_steps(CAPACITY, lambda step: step.features.tokens)
    times = {step: _ms_of(theta, step) for step in steps}
    return measured_steps({step: [ms] for step, ms in times.items() if ms <= most_ms})


def _ms_of(theta: Theta, step: ProbeStep) -> float:
    features = step.features
    return true_ms(theta, features.tokens, features.context, features.attention)


def a_step(theta: Theta, *, decode: int, prefill: int) -> MeasuredStep:
    context, attention = decode * 300, prefill * prefill // 2
    ms = true_ms(theta, decode + prefill, context, attention)
    return MeasuredStep(decode, prefill, context, attention, ms)


def predicted(pacer: ModelPacer, decode: int, prefill: int) -> float:
    return pacer.predict_ms(
        StepFeatures(
            decode=decode, prefill=prefill, context=decode * 300, attention=prefill * prefill // 2
        )
    )


@pytest.mark.parametrize(
    ("device", "theta"),
    [(H100, SLOW_HOST), (H100, BUSY), ("cuda:some new GPU", BUSY), ("cpu", LAPTOP)],
    ids=["slow host", "busy", "unknown GPU", "laptop"],
)
@pytest.mark.parametrize(("decode", "prefill"), [(1, 0), (48, 0), (10, 300), (0, 900)])
def test_the_first_prediction_is_what_was_measured(
    device: str, theta: Theta, decode: int, prefill: int
) -> None:
    """Before any request, of sizes between those of the profile too."""
    pacer = a_pacer(device)

    assert pacer.learn_profile(a_profile(theta))

    expected = true_ms(theta, decode + prefill, decode * 300, prefill * prefill // 2)
    assert predicted(pacer, decode, prefill) == pytest.approx(expected, rel=0.15)


def test_a_profiled_pacer_says_so_and_is_careful() -> None:
    """As one that was seeded: not trusted before its own steps, and without any sample of them."""
    pacer = a_pacer()

    pacer.learn_profile(a_profile(BUSY))

    info = pacer.info()
    assert (info.origin, info.valid, info.q_r, info.samples) == ("profile", False, 1.3, 0)
    assert info.reason == "learning: profiled at start, no fit yet"
    assert set(info.correction) == {1.0}
    assert info.theta == pytest.approx(info.prior)


def test_chunks_are_priced_from_the_first_request_on() -> None:
    """The first step beside decodes keeps its target; by the datasheet alone it misses it."""
    shape = StepShape(decode=8, context=2400, prefill_wanted=100_000)
    limits = Limits(max_batch_size=64, token_budget=4096, step_target_ms=100.0)
    profiled, assumed = a_pacer(), a_pacer()

    profiled.learn_profile(a_profile(BUSY))

    def first_step_ms(pacer: ModelPacer) -> float:
        chunk = pacer.token_total(shape, limits) - 8
        return true_ms(BUSY, 8 + chunk, 2400, chunk * chunk // 2)

    assert first_step_ms(profiled) <= 100.0
    assert first_step_ms(profiled) > 60.0
    assert first_step_ms(assumed) > 100.0


@pytest.mark.parametrize(("theta", "pays"), [(SLOW_HOST, True), (BUSY, False)], ids=str)
def test_speculation_is_switched_from_the_first_request_on(theta: Theta, pays: bool) -> None:
    """Verifying 256 draft tokens beside 64 decodes is nearly free, or costs four steps."""
    pacer = a_pacer()
    requests = [_a_repetitive_request(str(number)) for number in range(64)]
    speculation = Speculation(max_tokens=4, max_model_len=2048, proposer=NgramProposer())

    pacer.learn_profile(a_profile(theta))

    context = sum(len(request.token_ids) for request in requests)
    assert bool(speculation.plan(requests, pacer, context=context, room=1000)) == pays


def _a_repetitive_request(id_: str) -> Request:
    known = [1, 2, 3, 4, 5, 6] * 20
    request = Request(id_, known, len(known), Sampling(max_tokens=100))
    request.num_computed = len(known) - 1
    return request


@pytest.mark.parametrize("device", [H100, "cpu"])
@pytest.mark.parametrize("times", [0.2, 0.5, 2.0, 5.0])
def test_real_steps_outvote_a_wrong_profile(device: str, times: float) -> None:
    """It was made in a bad minute: some hundred steps later nothing of it is left."""
    theta = LAPTOP if device == "cpu" else SLOW_HOST
    wrong = (*(value * times for value in theta),)
    pacer = a_pacer(device)
    assert len(wrong) == 5
    pacer.learn_profile(a_profile(wrong))

    for seq in range(300):
        decode, prefill = 1 + seq % 12, (0, 0, 40, 300)[seq % 4]
        pacer.observe(a_step(theta, decode=decode, prefill=prefill), at=seq * 0.02)

    assert pacer.info().origin == "fit"
    assert pacer.info().valid
    for decode, prefill in ((1, 0), (12, 40), (6, 300)):
        expected = true_ms(theta, decode + prefill, decode * 300, prefill * prefill // 2)
        assert predicted(pacer, decode, prefill) == pytest.approx(expected, rel=0.1)


def test_the_first_fit_keeps_what_its_steps_did_not_show() -> None:
    """Twenty decodes say nothing of prompts; the profile did."""
    pacer = a_pacer()
    pacer.learn_profile(a_profile(BUSY))

    for seq in range(30):
        pacer.observe(a_step(BUSY, decode=1 + seq % 8, prefill=0), at=seq * 0.02)

    assert pacer.info().origin == "fit"
    assert predicted(pacer, 4, 1000) == pytest.approx(true_ms(BUSY, 1004, 1200, 500_000), rel=0.15)


def test_a_profile_of_small_steps_leaves_the_rest_to_the_prior() -> None:
    """Time ran out before prompts were measured: their price stays that of the datasheet."""
    pacer, assumed = a_pacer(), a_pacer()
    pacer.learn_profile(a_profile(SLOW_HOST, most_ms=14.5))

    assert predicted(pacer, 1, 0) == pytest.approx(14.0, rel=0.05)
    extra = predicted(pacer, 1, 2000) - predicted(pacer, 1, 0)
    datasheet = predicted(assumed, 1, 2000) - predicted(assumed, 1, 0)
    assert 0.2 * datasheet < extra < 5 * datasheet


def test_too_few_sizes_change_nothing() -> None:
    """What few small steps say of long prompts is noise: the prior knows better."""
    pacer = a_pacer()
    before = pacer.info()

    assert not pacer.learn_profile(a_profile(BUSY)[:7])
    assert pacer.info() == before


def test_a_seed_of_such_a_device_is_still_taken() -> None:
    """It was fitted to real traffic for hours: it goes before a profile of seconds."""
    pacer = a_pacer()
    pacer.learn_profile(a_profile(BUSY))

    assert pacer.seed(Coefficients([value * 1.1 for value in BUSY], 256))
    assert pacer.info().origin == "seed"


@pytest.mark.parametrize("times", [0.3, 3.0])
def test_a_seed_that_the_profile_contradicts_is_not_taken(times: float) -> None:
    """Another machine under the same name: what was measured here says so before any request."""
    pacer = a_pacer()
    pacer.learn_profile(a_profile(BUSY))
    before = pacer.info()

    assert not pacer.seed(Coefficients([value * times for value in BUSY], 256))
    assert pacer.info() == before


def test_a_fit_is_not_given_up_for_a_profile() -> None:
    """Whatever the order: this engine's own steps are worth more."""
    pacer = a_pacer()
    for seq in range(30):
        pacer.observe(a_step(BUSY, decode=1 + seq % 8, prefill=0), at=seq * 0.02)
    before = pacer.info()

    assert before.origin == "fit"
    assert not pacer.learn_profile(a_profile(SLOW_HOST))
    assert pacer.info() == before
