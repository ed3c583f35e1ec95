"""Who runs, and how many tokens each gets."""

import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.pacing.pacer import NoPacer, StepShape
from paceline_engine.scheduling.fair_share import MAX_OVERTAKEN
from paceline_testing.engines import EngineUnderTest, a_capacity, a_model_info, a_submit, answer
from paceline_wire import SetLimits
from paceline_wire.limits import Lane, Limits


class Batches:
    """What each step computed: tokens by request."""

    def __init__(self, under_test: EngineUnderTest) -> None:
        self.counts: list[dict[str, int]] = []
        under_test.runner.before_run = self.note

    def note(self, batch: Batch) -> None:
        self.counts.append({chunk.request.id: chunk.count for chunk in batch.chunks})


def a_prompt(length: int, first: int = 0) -> list[int]:
    return [(first + position) % 1000 for position in range(length)]


def test_decodes_run_in_every_step_that_prefills() -> None:
    """A long prompt must not stop the answers that are under way."""
    under_test = EngineUnderTest(limits=Limits(8, 16))
    under_test.submit(a_submit("running", max_tokens=20))
    under_test.step()
    batches = Batches(under_test)

    under_test.submit(a_submit("long", a_prompt(60)))
    for _ in range(4):
        under_test.step()

    assert batches.counts == [{"running": 1, "long": 15}] * 4


def test_short_prompts_start_beside_a_long_one() -> None:
    """The long prompt takes half of what is left, the short ones pass in the same step."""
    under_test = EngineUnderTest(limits=Limits(8, 64))
    batches = Batches(under_test)

    under_test.submit(a_submit("long", a_prompt(100)))
    under_test.submit(a_submit("short 1", a_prompt(10, 200)), a_submit("short 2", a_prompt(5, 300)))
    under_test.step()

    assert batches.counts == [{"long": 64 - 15, "short 1": 10, "short 2": 5}]


def test_a_short_prompt_passes_several_long_ones() -> None:
    """Each long prompt takes half of what the one before left."""
    under_test = EngineUnderTest(limits=Limits(8, 64))
    batches = Batches(under_test)

    for number in range(2):
        under_test.submit(a_submit(f"long {number}", a_prompt(100, 200 * number)))
    under_test.submit(a_submit("short", a_prompt(10, 900)))
    under_test.step()

    assert batches.counts == [{"long 0": 32 + 6, "long 1": 16, "short": 10}]


def test_no_third_prompt_is_begun_that_cannot_be_finished() -> None:
    """It would take tokens from those begun, and could not be refused in time any more."""
    under_test = EngineUnderTest(limits=Limits(8, 64))
    batches = Batches(under_test)

    under_test.submit(*[a_submit(f"{n}", a_prompt(100, 200 * n)) for n in range(4)])
    under_test.step()
    under_test.step()

    assert batches.counts == [{"0": 32 + 16, "1": 16}, {"0": 52, "1": 12}]


def test_a_lane_is_served_in_order_of_arrival() -> None:
    """Nobody overtakes within a lane."""
    under_test = EngineUnderTest(limits=Limits(1, 64))
    ids = [f"{number}" for number in range(5)]

    under_test.submit(*[a_submit(id, a_prompt(3)) for id in ids])
    under_test.run_to_end()

    assert under_test.finished == ids


@pytest.mark.parametrize(
    ("shares", "interactive"), [((0.8, 0.2), 0.8), ((0.5, 0.5), 0.5)], ids=["4 to 1", "1 to 1"]
)
def test_lanes_share_prefill_as_the_limits_say(
    shares: tuple[float, float], interactive: float
) -> None:
    """While both wait, prefill tokens go by share."""
    under_test = EngineUnderTest(limits=Limits(4, 16, None, *shares))
    batches = Batches(under_test)
    lanes: tuple[Lane, ...] = ("interactive", "batch")
    for number in range(60):
        for lane in lanes:
            submit = a_submit(f"{lane} {number}", a_prompt(8, number), max_tokens=1, lane=lane)
            under_test.submit(submit)

    for _ in range(25):
        under_test.step()

    served = [count for counts in batches.counts for count in counts.items()]
    by_lane = {lane: sum(count for id, count in served if id.startswith(lane)) for lane in lanes}
    share = by_lane["interactive"] / sum(by_lane.values())
    assert share == pytest.approx(interactive, abs=0.05)


def test_a_lane_alone_gets_everything() -> None:
    """A share is what a lane gets while both wait, not a cap."""
    under_test = EngineUnderTest(limits=Limits(8, 32, None, 1.0, 0.0))
    batches = Batches(under_test)

    under_test.submit(a_submit("a", a_prompt(32), lane="batch"))
    under_test.step()

    assert batches.counts == [{"a": 32}]


def flood(under_test: EngineUnderTest, number: int) -> None:
    """One more interactive request, so that two always wait."""
    under_test.submit(a_submit(f"flood {number}", a_prompt(8, number), max_tokens=4))


def test_a_lane_without_a_share_does_not_starve() -> None:
    """Batch requests are done in a bounded time under an endless interactive flood."""
    under_test = EngineUnderTest(limits=Limits(2, 16, None, 1.0, 0.0))
    under_test.submit(a_submit("batch", a_prompt(8), lane="batch"))
    flood(under_test, 0)
    flood(under_test, 1)

    number = 2
    while under_test.finish("batch") is None:
        flood(under_test, number)
        under_test.step()
        number += 1
        assert number < 1000


def test_a_request_that_needs_most_blocks_is_not_overtaken_for_ever() -> None:
    """Small requests of the other lane pass it, but only so often."""
    capacity = a_capacity(num_blocks=24, block_size=4, max_batch_size=4)
    under_test = EngineUnderTest(capacity)
    for number in range(4):
        flood(under_test, number)
        under_test.step()
    under_test.submit(a_submit("large", a_prompt(84), max_tokens=2, lane="batch"))

    number = 4
    while "large" not in under_test.outputs:
        flood(under_test, number)
        under_test.step()
        number += 1
        assert number < 1000

    started_before = [id for id in under_test.outputs if id.startswith("flood")]
    assert MAX_OVERTAKEN < len(started_before) <= MAX_OVERTAKEN + 10


def test_a_full_cache_preempts_the_batch_lane_first() -> None:
    """It is computed again, and its answer is what it would have been alone."""
    capacity = a_capacity(num_blocks=8, block_size=4, max_batch_size=4, max_model_len=28)
    under_test = EngineUnderTest(capacity, prefix_caching=False)
    submits = [
        a_submit("batch", a_prompt(8), max_tokens=16, lane="batch"),
        a_submit("interactive", a_prompt(8, 100), max_tokens=16),
    ]

    under_test.submit(*submits)
    under_test.run_until(lambda: under_test.engine.requests.num_preemptions > 0)
    lanes = under_test.engine.load().running_by_lane
    under_test.run_to_end()

    assert lanes == {"interactive": 1, "batch": 0}
    for submit in submits:
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 28)


def test_a_preempted_request_comes_back_before_those_that_wait() -> None:
    """What was begun is finished first."""
    capacity = a_capacity(num_blocks=8, block_size=4, max_batch_size=2, max_model_len=28)
    under_test = EngineUnderTest(capacity, prefix_caching=False)
    under_test.submit(
        *[a_submit(id, a_prompt(8, 100 * i), max_tokens=16) for i, id in enumerate("abc")]
    )

    under_test.run_until(lambda: under_test.engine.requests.num_preemptions > 0)
    head = under_test.engine.requests.waiting["interactive"].head
    under_test.run_to_end()

    assert head is not None
    assert head.id == "b"
    assert under_test.finished == ["a", "b", "c"]


def test_a_request_is_not_admitted_into_the_blocks_that_others_need_next() -> None:
    """It would be preempted at once, and computed twice."""
    capacity = a_capacity(num_blocks=8, block_size=4, max_model_len=32)
    under_test = EngineUnderTest(capacity, prefix_caching=False)
    under_test.submit(a_submit("running", a_prompt(7), max_tokens=4))
    under_test.step()

    under_test.submit(a_submit("large", a_prompt(24), max_tokens=2))
    under_test.step()

    assert under_test.engine.load().waiting == 1
    under_test.run_to_end()
    assert under_test.engine.requests.num_preemptions == 0
    assert under_test.finished == ["running", "large"]


def test_a_lowered_batch_size_drains() -> None:
    """Nothing that runs is touched, nothing new starts until fewer run."""
    under_test = EngineUnderTest()
    under_test.submit(*[a_submit(f"{n}", a_prompt(3, n), max_tokens=5) for n in range(4)])
    under_test.step()
    batches = Batches(under_test)

    under_test.engine.set_limits(SetLimits(call=1, epoch=1, max_batch_size=2, token_budget=2))
    under_test.submit(a_submit("new", a_prompt(3, 50)))
    for _ in range(5):
        under_test.step()

    assert batches.counts[:4] == [{"0": 1, "1": 1, "2": 1, "3": 1}] * 4
    assert set(batches.counts[4]) == {"new"}


def test_a_raised_batch_size_is_seen_by_the_next_step() -> None:
    """A raise waits for nothing."""
    under_test = EngineUnderTest(limits=Limits(1, 64))
    under_test.submit(*[a_submit(f"{n}", a_prompt(3, n)) for n in range(4)])
    under_test.step()

    under_test.engine.set_limits(SetLimits(call=1, epoch=1, max_batch_size=4))
    under_test.step()

    assert under_test.engine.load().running == 4


def test_a_request_past_its_deadline_is_not_started() -> None:
    """Its answer would come too late: the time goes to the others."""
    under_test = EngineUnderTest(limits=Limits(1, 64))
    under_test.submit(a_submit("running", max_tokens=20))
    under_test.submit(a_submit("late", deadline_at=under_test.clock.now + 1.0))
    under_test.step()

    under_test.clock.advance(1.0)
    under_test.step()

    assert [(o.finish, o.error) for o in under_test.outputs["late"]] == [("error", "deadline")]
    assert under_test.finish("running") is None


def test_a_running_request_past_its_deadline_is_ended() -> None:
    """Its blocks are free for others."""
    under_test = EngineUnderTest()
    under_test.submit(a_submit("late", max_tokens=20, deadline_at=under_test.clock.now + 1.0))
    under_test.step()

    under_test.clock.advance(1.0)
    under_test.step()

    assert under_test.outputs["late"][-1].error == "deadline"
    assert under_test.engine.load().kv_used_blocks == 0


@pytest.mark.parametrize(
    ("min_tokens", "stops", "num_tokens", "finish"),
    [(0, False, 6, "length"), (0, True, 2, "stop"), (6, True, 6, "length")],
    ids=["as many as wanted", "a stop token", "not before the least wanted"],
)
def test_an_answer_ends_where_its_sampling_says(
    min_tokens: int, stops: bool, num_tokens: int, finish: str
) -> None:
    """The last token is given out too: the sidecar counts it."""
    under_test = EngineUnderTest()
    free = answer(a_submit(max_tokens=6), under_test.info, 128)
    assert free.index(free[1]) == 1

    under_test.submit(
        a_submit(
            "a",
            max_tokens=6,
            min_tokens=min_tokens,
            stop_token_ids=(free[1],) if stops else (),
        )
    )
    under_test.run_to_end()

    assert under_test.tokens("a") == free[:num_tokens]
    assert under_test.finish("a") == finish


@pytest.mark.parametrize("ignore_eos", [False, True], ids=["heeded", "ignored"])
def test_the_end_of_sequence_ends_an_answer_unless_ignored(ignore_eos: bool) -> None:
    """Benchmarks want a fixed number of tokens."""
    free = answer(a_submit(max_tokens=6), a_model_info(), 128)
    under_test = EngineUnderTest(info=a_model_info(eos_token_ids=(free[2],)))

    under_test.submit(a_submit("a", max_tokens=6, ignore_eos=ignore_eos))
    under_test.run_to_end()

    assert under_test.tokens("a") == (free if ignore_eos else free[:3])


class _Listener(NoPacer):
    """Allows everything and keeps what it was asked."""

    def __init__(self) -> None:
        self.slacks_ms: list[float | None] = []

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        self.slacks_ms.append(shape.slack_ms)
        return limits.token_budget


def test_the_pacer_is_told_the_slack_of_who_decodes() -> None:
    """From the first token on, by the engine's clock: what a client would measure."""
    pacer = _Listener()
    under_test = EngineUnderTest(pacer=pacer, limits=Limits(8, 64, pace_tpot_ms=100.0))
    under_test.submit(a_submit("a", max_tokens=3))

    under_test.step()
    under_test.clock.advance(0.05)
    under_test.step()
    under_test.clock.advance(0.3)
    under_test.step()

    assert pacer.slacks_ms[0] is None
    assert pacer.slacks_ms[1:] == pytest.approx([93.0 - 50.0, 2 * 93.0 - 350.0])


def test_without_a_pace_no_slack_is_told() -> None:
    """Nobody asked for it."""
    pacer = _Listener()
    under_test = EngineUnderTest(pacer=pacer)
    under_test.submit(a_submit("a", max_tokens=3))

    under_test.run_to_end()

    assert set(pacer.slacks_ms) == {None}


@pytest.mark.parametrize(("others", "slack_ms"), [(4, 186.0), (5, None)], ids=["few", "many"])
def test_many_prompts_leave_steps_at_their_plain_target(
    others: int, slack_ms: float | None
) -> None:
    """Every step is full there; a longer one only leaves less to the next."""
    pacer = _Listener()
    under_test = EngineUnderTest(pacer=pacer, limits=Limits(8, 64, pace_tpot_ms=100.0))
    under_test.submit(a_submit("a", max_tokens=9))
    under_test.step()
    under_test.step()

    under_test.submit(*(a_submit(f"b{number}") for number in range(others)))
    under_test.step()

    assert pacer.slacks_ms[-1] == (None if slack_ms is None else pytest.approx(slack_ms))
