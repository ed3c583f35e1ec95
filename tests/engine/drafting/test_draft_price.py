"""A draft model's time has a price: it drafts where that pays, and may never lose much.

Both models take the time that a test says, on a clock that only they move; what each knows of its
own price it has to learn from that.
"""

from collections.abc import Callable, Sequence

import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.core.request import Request
from paceline_engine.drafting.price import SpeculationBudget
from paceline_engine.drafting.proposer import Ask, Proposal
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.pacing import ModelPacer
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.pacing.prior import prior_for
from paceline_engine.scheduling.scheduler import ContinuousScheduler
from paceline_testing.engines import EngineUnderTest, a_135m_info, a_capacity, a_submit
from paceline_testing.fake_runner import FakeRunner, right_at
from paceline_wire import Sampling, StepFeatures
from paceline_wire.limits import Lane, Limits

VOCAB = 1000
LANES: tuple[Lane, Lane] = ("interactive", "batch")


def timed(
    *,
    right_of_eight: Callable[[], int],
    fixed_ms: float,
    token_ms: float,
    pass_ms: float,
    draft_tokens: int = 4,
    is_learned: bool = True,
) -> EngineUnderTest:
    """An engine whose steps and whose draft model's passes take so long, to be learned."""
    capacity = a_capacity(max_token_budget=1000, num_blocks=512, max_model_len=1000)

    def choose(known: list[int]) -> int:
        return right_at(right_of_eight(), VOCAB)(known)

    def pacer() -> ModelPacer:
        return ModelPacer(prior_for(a_135m_info()), capacity)

    under_test = EngineUnderTest(
        capacity,
        limits=Limits(8, 1000),
        draft_tokens=draft_tokens,
        draft_choice=choose,
        pacer=pacer(),
        draft_pacer=pacer() if is_learned else NoPacer(),
        prefix_caching=False,
    )

    def take(runner: FakeRunner | None, fixed_ms: float, token_ms: float) -> None:
        assert runner is not None

        def run(batch: Batch) -> None:
            under_test.clock.advance((fixed_ms + token_ms * batch.num_tokens) / 1e3)

        runner.before_run = run

    take(under_test.runner, fixed_ms, token_ms)
    take(under_test.draft_runner, pass_ms, token_ms * pass_ms / fixed_ms)
    assert under_test.proposer is not None
    under_test.proposer.warm_up()
    return under_test


def serve(
    under_test: EngineUnderTest, requests: int, *, prompt: int = 60, tokens: int = 60
) -> float:
    """Answer so many, one after the other; milliseconds for each token."""
    started = under_test.clock.now
    before = under_test.engine.counters.output_tokens
    for number in range(requests):
        id_ = f"{before} {number}"
        under_test.submit(a_submit(id_, [number % 7] * prompt, max_tokens=tokens))
        under_test.run_to_end()
    made = under_test.engine.counters.output_tokens - before
    return (under_test.clock.now - started) * 1e3 / made


def plain_ms(fixed_ms: float, token_ms: float, *, prompt: int = 60, tokens: int = 60) -> float:
    """The same without drafts: the prompt's step gives a token too."""
    return fixed_ms + token_ms * (prompt + tokens - 1) / tokens


def test_a_draft_model_that_is_right_and_quick_is_used() -> None:
    """Four at a tenth of a step each: nearly five tokens for about a step and a half."""
    under_test = timed(right_of_eight=lambda: 8, fixed_ms=10.0, token_ms=0.1, pass_ms=1.0)

    took = serve(under_test, 30)

    assert took < 0.5 * plain_ms(10.0, 0.1)


@pytest.mark.parametrize("pass_ms", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("right_of_eight", [0, 2, 4])
def test_a_poor_draft_model_never_loses_two_percent(right_of_eight: int, pass_ms: float) -> None:
    """However wrong it is, and whatever it costs."""
    under_test = timed(
        right_of_eight=lambda: right_of_eight, fixed_ms=10.0, token_ms=1.0, pass_ms=pass_ms
    )

    took = serve(under_test, 60)

    assert took < 1.02 * plain_ms(10.0, 1.0)


def test_a_price_that_is_wrong_costs_no_more_than_the_budget_holds() -> None:
    """The draft model is believed to be free, and takes three steps' time for each draft token."""
    under_test = timed(
        right_of_eight=lambda: 4, fixed_ms=10.0, token_ms=0.1, pass_ms=30.0, is_learned=False
    )

    took = serve(under_test, 60)

    lost_ms = (took - plain_ms(10.0, 0.1)) * under_test.engine.counters.output_tokens
    one_try_ms = 4 * 31.0
    passed_ms = plain_ms(10.0, 0.1) * under_test.engine.counters.output_tokens
    assert 1000.0 < lost_ms < 2000.0 + one_try_ms + 0.011 * passed_ms


def test_text_that_turns_costs_no_more_than_it_brought() -> None:
    """A draft model that was right for long is not believed for ever, and is tried again."""
    right = 8
    under_test = timed(right_of_eight=lambda: right, fixed_ms=10.0, token_ms=1.0, pass_ms=1.0)
    good = serve(under_test, 20)
    right = 0
    bad = serve(under_test, 60)
    right = 8
    again = serve(under_test, 60)

    plain = plain_ms(10.0, 1.0)
    assert good < 0.7 * plain
    assert bad < 1.02 * plain
    assert again < 0.8 * plain


def test_lanes_learn_apart() -> None:
    """A draft model that knows the one's texts only is asked for these only."""
    under_test = timed(right_of_eight=lambda: 8, fixed_ms=10.0, token_ms=1.0, pass_ms=1.0)
    draft_runner = under_test.draft_runner
    assert draft_runner is not None
    choose = draft_runner.choose
    draft_runner.choose = lambda known: choose(known) + (known[0] == 1)  # type: ignore[method-assign]
    for number in range(40):
        lane = LANES[number % 2]
        under_test.submit(a_submit(f"{number}", [number % 2] * 20, max_tokens=40, lane=lane))
        under_test.run_to_end()

    scheduler = under_test.engine.scheduler
    assert isinstance(scheduler, ContinuousScheduler)
    assert scheduler.speculation is not None
    chances = [scheduler.speculation.acceptance.chance("new", lane) for lane in LANES]
    assert chances[0] > 0.9
    assert chances[1] < 0.4


def test_the_step_model_learns_nothing_of_the_draft_model_s_time() -> None:
    """Half of the wall clock is the draft model's here; a step's record is of the step alone."""
    under_test = timed(right_of_eight=lambda: 8, fixed_ms=10.0, token_ms=0.01, pass_ms=3.0)

    serve(under_test, 20)

    records = under_test.engine.log.take()
    drafted = [record for record in records if record.prefill and record.decode]
    assert len(drafted) > 100
    for record in drafted:
        assert record.wall_ms == pytest.approx(10.0 + 0.01 * (record.decode + record.prefill))
        assert record.host_ms == pytest.approx(0.0, abs=1e-6)
        assert record.draft_ms >= 3.0


class Passes:
    """A proposer that would draft right, for a price, and notes what it is asked for."""

    first_chance = 0.9
    takes_time = True

    def __init__(self, *, pending: int, token_ms: float, draft_ms: float) -> None:
        self._pending = pending
        self._token_ms = token_ms
        self._draft_ms = draft_ms

    def reach(self, request: Request, most: int) -> int:  # noqa: ARG002 - the port's shape
        return most

    def pending(self, request: Request) -> int:  # noqa: ARG002 - the port's shape
        return self._pending

    def ms(self, asks: Sequence[Ask]) -> float:
        return sum(self._token_ms * ask.pending + self._draft_ms * ask.count for ask in asks)

    def ms_of_one(self, rows: int, context: int) -> float:  # noqa: ARG002 - the port's shape
        return self._draft_ms

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        return Proposal({ask.request.id: (0,) * ask.count for ask in asks}, self.ms(asks))

    def forget(self, request: Request) -> None:
        pass


class TenMilliseconds(NoPacer):
    """A step takes ten, and a tenth more for each token."""

    def predict_ms(self, step: StepFeatures) -> float:
        return 10.0 + 0.1 * step.tokens


def a_request(*, generated: int, max_tokens: int = 1000) -> Request:
    request = Request(
        id="a",
        token_ids=[1] * (500 + generated),
        num_prompt_tokens=500,
        sampling=Sampling(max_tokens=max_tokens),
    )
    request.num_computed = len(request.token_ids) - 1
    return request


def planned(
    proposer: Passes,
    request: Request,
    *,
    allowed_ms: float = 1e9,
    budget: SpeculationBudget | None = None,
) -> list[Ask]:
    speculation = Speculation(4, 2048, proposer)
    speculation.budget = budget or speculation.budget
    return speculation.plan(
        [request], TenMilliseconds(), context=500, room=100, allowed_ms=allowed_ms
    )


def test_a_long_prompt_is_taken_in_once_as_many_tokens_may_come() -> None:
    """500 tokens at 1 ms are 500 ms; a token saves about 5: a hundred must be to come."""
    proposer = Passes(pending=500, token_ms=1.0, draft_ms=1.0)

    assert planned(proposer, a_request(generated=20)) == []
    (ask,) = planned(proposer, a_request(generated=200))
    assert (ask.pending, ask.count) == (256, 0)
    assert planned(proposer, a_request(generated=200, max_tokens=220)) == []


def test_the_step_s_target_holds_with_the_draft_model_s_time() -> None:
    """Shorter drafts where there is less time, and none where there is none."""
    proposer = Passes(pending=1, token_ms=0.1, draft_ms=1.0)
    request = a_request(generated=50)

    counts = [
        sum(ask.count for ask in planned(proposer, request, allowed_ms=allowed_ms))
        for allowed_ms in (20.0, 13.0, 11.4, 11.0)
    ]

    assert counts == [4, 2, 1, 0]


def test_nothing_is_tried_that_the_budget_does_not_cover() -> None:
    """Whatever is believed of it."""
    proposer = Passes(pending=1, token_ms=0.1, draft_ms=1.0)
    request = a_request(generated=50)

    assert planned(proposer, request, budget=SpeculationBudget(left_ms=5.0))
    assert not planned(proposer, request, budget=SpeculationBudget(left_ms=1.0))


def test_the_budget_fills_by_a_share_of_the_time_and_by_what_was_saved() -> None:
    """But not without end."""
    budget = SpeculationBudget(left_ms=0.0)

    budget.save_up(1000.0)
    budget.earn(5.0)
    budget.spend(3.0)
    assert budget.left_ms == pytest.approx(10.0 + 5.0 - 3.0)

    budget.earn(1e9)
    budget.spend(2500.0)
    assert budget.left_ms == pytest.approx(-500.0)
