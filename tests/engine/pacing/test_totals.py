"""The total of a step: within its time, on the better tile, and sometimes elsewhere."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.pacing import StepShape, make_pacer
from paceline_engine.pacing.model_pacer import ModelPacer
from paceline_engine.pacing.prompts_ahead import shared_attention
from paceline_engine.pacing.residuals import Residuals
from paceline_engine.pacing.totals import Totals
from paceline_wire import Coefficients, MeasuredStep, ModelInfo, StepFeatures
from paceline_wire.limits import Capacity, Limits
from paceline_wire.step_cost import StepModel

CAPACITY = Capacity(256, 4096, 4096, 16, 4096)
BACKLOG = StepShape(decode=20, context=8000, prefill_wanted=100_000)
LINE = StepModel((8.0, 0.01, 0.02, 0.05, 1.0))


def a_pacer() -> ModelPacer:
    info = ModelInfo(
        "m", "llama", "", "bfloat16", "NVIDIA H100", 8 * 10**9, 1, 4096, 1, [2], 131_072, 16 * 10**9
    )
    pacer = make_pacer(info, CAPACITY)
    assert isinstance(pacer, ModelPacer)
    return pacer


def a_step(*, decode: int, prefill: int, context: int, ms: float) -> MeasuredStep:
    return MeasuredStep(decode, prefill, context, prefill * prefill // 2, ms)


def taught(pacer: ModelPacer, steps: int = 400) -> ModelPacer:
    """A GPU's staircase: 128 tokens a stair, the third one dear."""
    rng = random.Random(1)
    for seq in range(steps):
        decode, prefill = rng.randint(1, 60), rng.choice([0, 0, 64, 200, 400, 700, 1000, 1500])
        tiles = math.ceil((decode + prefill) / 128)
        wall_ms = (9.0 + 2.5 * tiles + decode * 0.02) * rng.lognormvariate(0.0, 0.03)
        step = a_step(decode=decode, prefill=prefill, context=decode * 400, ms=wall_ms)
        pacer.observe(step, at=seq * 0.02)
    assert pacer.info().valid
    return pacer


def known(corrections: dict[int, float]) -> Residuals:
    """Residuals whose bins were all seen often, 1 where nothing else is said."""
    residuals = Residuals(CAPACITY.max_token_budget)
    residuals.seed([corrections.get(place, 1.0) for place in range(33)])
    return residuals


TAUGHT = taught(a_pacer())
slacks = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.floats(-1e3, 1e3))
shapes = st.builds(
    StepShape,
    decode=st.integers(1, 256),
    context=st.integers(0, 256 * 400),
    prefill_wanted=st.integers(0, 10**6),
    prompts=st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 4000)), max_size=1),
    slack_ms=slacks,
)


@settings(max_examples=300, deadline=None)
@given(
    shape=shapes,
    budget=st.integers(1, 4096),
    pace_ms=st.floats(0.001, 1e5),
    fresh=st.booleans(),
)
def test_a_step_keeps_its_slack_or_grants_the_least(
    shape: StepShape, budget: int, pace_ms: float, *, fresh: bool
) -> None:
    """Whatever the slack is, and were it no number: the decodes run, and prompts get on."""
    pacer = a_pacer() if fresh else TAUGHT

    total = pacer.token_total(shape, Limits(256, budget, pace_tpot_ms=pace_ms))

    assert shape.decode <= total <= max(budget, shape.decode)
    least = min(shape.decode + 64, max(budget, shape.decode))
    assert total >= least
    if total > least:
        slack_ms = shape.slack_ms
        known_ms = -math.inf if slack_ms is None or math.isnan(slack_ms) else slack_ms
        tau_ms = min(max(known_ms, 0.9 * pace_ms), 2 * pace_ms)
        chunk = total - shape.decode
        predicted_ms = pacer.predict_ms(
            StepFeatures(
                decode=shape.decode,
                prefill=chunk,
                context=shape.context,
                attention=int(shared_attention(shape.prompts, len(shape.prompts), chunk)),
            )
        )
        assert predicted_ms * pacer.info().q_r <= tau_ms * (1 + 1e-9)


def test_a_pace_without_slack_leaves_the_step_target() -> None:
    """A scheduler that does not follow requests must still keep what the tuner derived."""
    shape = StepShape(decode=20, context=8000, prefill_wanted=9999)

    by_target = TAUGHT.token_total(shape, Limits(256, 4096, step_target_ms=40.0))
    with_pace = TAUGHT.token_total(
        shape, Limits(256, 4096, step_target_ms=40.0, pace_tpot_ms=400.0)
    )

    assert with_pace == by_target


def test_requests_that_are_ahead_give_their_time_to_prompts() -> None:
    """The mean of a request counts, so what it has gained may be spent."""
    ahead, behind = (
        StepShape(decode=20, context=8000, prefill_wanted=9999, slack_ms=slack_ms)
        for slack_ms in (60.0, -60.0)
    )
    limits = Limits(256, 4096, pace_tpot_ms=35.0)

    assert TAUGHT.token_total(ahead, limits) > 1.5 * TAUGHT.token_total(behind, limits)


def test_the_tile_that_prefills_faster_is_preferred() -> None:
    """Ten tokens into a dear stair cost as much as the whole of it."""
    totals = Totals(LINE, known({7: 1.4}), BACKLOG, allowed_ms=1e3)

    assert totals.better(most=906, least=84) == 896
    assert Totals(LINE, known({}), BACKLOG, allowed_ms=1e3).better(906, 84) == 906


def test_the_tile_is_chosen_by_all_that_a_step_computes() -> None:
    """However many run: longer steps let more run at once, which only moves the same contexts.

    By prompt tokens alone the longer step looked better whenever much was running.
    """
    stairs = known({2: 0.9, 3: 1.04, 4: 1.04})
    few, many = (
        StepShape(decode=rows, context=rows * 1000, prefill_wanted=100_000) for rows in (8, 90)
    )

    for shape in (few, many):
        assert Totals(LINE, stairs, shape, allowed_ms=1e3, has_tiles=True).better(560, 200) == 384


def test_where_tiles_end_a_step_ends_unless_that_costs_prefill() -> None:
    """The correction is a mean over its bin: it cannot tell a full tile from a begun one."""
    totals = Totals(LINE, known({}), BACKLOG, allowed_ms=1e3, has_tiles=True)

    assert totals.better(most=906, least=84) == 896
    assert totals.better(most=250, least=84) == 250


def test_a_tile_is_not_preferred_where_it_is_unknown_small_or_too_long() -> None:
    """A correction that nobody measured is no reason, and six tenths are the least."""
    cheap = known({0: 0.7, 1: 0.7, 2: 0.7, 3: 0.7})
    unseen = Residuals(CAPACITY.max_token_budget)

    assert Totals(LINE, cheap, BACKLOG, allowed_ms=1e3).better(906, 84) == 906
    assert Totals(LINE, unseen, BACKLOG, allowed_ms=1e3).better(906, 84) == 906
    assert Totals(LINE, known({7: 1.4}), BACKLOG, allowed_ms=1.0).better(906, 84) == 906


def test_three_of_a_hundred_steps_look_elsewhere_within_their_time() -> None:
    """What is never run is never learned; what is run must still keep the target."""
    totals = Totals(LINE, known({5: 1.5}), BACKLOG, allowed_ms=30.0)
    most = totals.most(4096)

    tried = [totals.dithered(most, 84, step) for step in range(20_000)]

    others = {total for total in tried if total != most}
    assert 0.025 <= sum(total != most for total in tried) / len(tried) <= 0.035
    assert len(others) >= 2
    assert all(total % 128 == 0 and most / 2 <= total < most for total in others)
    for total in others:
        tight = Totals(LINE, totals.residuals, BACKLOG, allowed_ms=30.0)
        assert tight.most(total) == total
    assert tried == [totals.dithered(most, 84, step) for step in range(20_000)]


def test_without_a_valid_fit_no_step_looks_elsewhere() -> None:
    """Exploring around a guess would be exploring outside the safe set."""
    seeded = a_pacer()
    seeded.seed(Coefficients(theta=[8.0, 0.01, 0.02, 0.05, 1.0], knee=256))
    limits = Limits(256, 4096, step_target_ms=60.0)

    def totals(pacer: ModelPacer) -> set[int]:
        found = set()
        for seq in range(300):
            found.add(pacer.token_total(BACKLOG, limits))
            # A step that was preempted teaches nothing but goes by.
            step = a_step(decode=20, prefill=0, context=8000, ms=math.nan)
            pacer.observe(step, at=seq * 0.02)
        return found

    assert len(totals(seeded)) == 1
    assert len(totals(taught(a_pacer()))) > 1


def test_what_finishes_every_prompt_is_not_cut_to_a_tile() -> None:
    """The rest of a prompt would cost a step of its own."""
    shape = StepShape(decode=20, context=8000, prefill_wanted=300)
    limits = Limits(256, 4096, step_target_ms=60.0)

    for seq in range(300):
        assert TAUGHT.token_total(shape, limits) >= 320
        step = a_step(decode=20, prefill=0, context=8000, ms=math.nan)
        TAUGHT.observe(step, at=seq * 0.02)


@pytest.mark.parametrize("budget", [1, 20, 64])
def test_a_small_budget_is_kept_by_every_rule(budget: int) -> None:
    """Tiles and looks elsewhere choose below the most, never above it."""
    total = TAUGHT.token_total(BACKLOG, Limits(256, budget, step_target_ms=60.0))

    assert total == max(budget, 20)
