"""A step is chosen while the one before runs, and nobody who asks can tell, but by the time."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.batch import Batch, Flight, StepOutput
from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.errors import RequestError
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.scheduling.request_table import LANES
from paceline_testing.clock import ManualClock
from paceline_testing.engines import EngineUnderTest, a_capacity, a_model_info, a_submit, answer
from paceline_testing.fake_runner import FakeRunner, LateFlight, LateRunner
from paceline_wire import Sampling, SetLimits, Submit
from paceline_wire.limits import Lane, Limits


def overlapping(limits: Limits | None = None, *, num_blocks: int = 64) -> EngineUnderTest:
    return EngineUnderTest(a_capacity(num_blocks=num_blocks), limits=limits, overlap=True)


def batches_of(under_test: EngineUnderTest) -> list[Batch]:
    """Every batch from now on."""
    seen: list[Batch] = []
    under_test.runner.before_run = seen.append
    return seen


def test_a_step_is_launched_before_the_one_before_is_settled() -> None:
    """The device never waits for the host: its next step is there when one ends."""
    under_test = overlapping()
    batches = batches_of(under_test)
    under_test.submit(a_submit("a", max_tokens=3))

    told = []
    while not under_test.engine.is_idle:
        told.append((len(under_test.step()), len(batches)))

    assert told == [(0, 1), (1, 2), (1, 3), (1, 3)]
    assert under_test.tokens("a") == answer(a_submit("a", max_tokens=3), under_test.info, 128)


def test_no_row_is_computed_that_nobody_wants() -> None:
    """Where a request ends by its length, that is known before its last token is."""
    under_test = overlapping()
    batches = batches_of(under_test)
    under_test.submit(
        a_submit("short", max_tokens=1),
        a_submit("long", max_tokens=6),
        a_submit("whole context", list(range(120)), max_tokens=8),
    )
    under_test.run_to_end()

    sampled = sum(chunk.samples for batch in batches for chunk in batch.chunks)
    assert sampled == 1 + 6 + 8
    assert under_test.engine.counters.output_tokens == 1 + 6 + 8


def test_a_stop_costs_one_row_at_most() -> None:
    """The step behind was launched before anybody could know; what it gives is thrown away."""
    under_test = overlapping()
    prompt = [1, 2, 3]
    stop = answer(a_submit("a", prompt), under_test.info, 128)[2]
    batches = batches_of(under_test)
    under_test.submit(a_submit("a", prompt, max_tokens=50, stop_token_ids=(stop,)))
    under_test.run_to_end()

    assert len(under_test.tokens("a")) == 3
    assert under_test.tokens("a")[-1] == stop
    assert under_test.finish("a") == "stop"
    assert len(batches) == 4
    assert under_test.engine.load().kv_used_blocks == 0


def test_an_aborted_request_frees_its_blocks_at_once() -> None:
    """Though a step that writes to them is on its way: who gets them next is computed later."""
    under_test = overlapping(num_blocks=8)
    under_test.submit(a_submit("a", list(range(28)), max_tokens=4))
    under_test.step()
    under_test.step()
    under_test.engine.abort(["a"])

    assert under_test.engine.load().kv_used_blocks == 0
    follower = a_submit("b", list(range(50, 78)), max_tokens=4)
    under_test.submit(follower)
    under_test.run_to_end()
    assert under_test.finish("a") == "abort"
    assert under_test.tokens("b") == answer(follower, under_test.info, 128)


def test_an_engine_with_a_step_in_flight_is_not_idle() -> None:
    """Or its last result would never be fetched."""
    under_test = overlapping()
    under_test.submit(a_submit("a", max_tokens=9))
    under_test.step()
    under_test.engine.abort_all()

    assert not under_test.engine.is_idle
    assert under_test.step() == []
    assert under_test.engine.is_idle


class AnyToken:
    """A constraint that every token fulfils."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        del output_ids  # whatever came before
        bitmask[:] = 0xFFFFFFFF


def test_a_grammar_waits_for_its_token() -> None:
    """Each decode step then follows the one before, and is counted."""
    under_test = overlapping()
    under_test.engine.submit(Submit("a", [1, 2, 3], Sampling(8, temperature=0.0)), AnyToken())
    under_test.run_to_end()

    assert len(under_test.tokens("a")) == 8
    assert under_test.engine.load().overlap_fallbacks == 8


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(8, temperature=0.0, repetition_penalty=1.1),
        Sampling(8, temperature=0.0, logprobs=2),
        Sampling(8, temperature=0.0, min_tokens=2),
    ],
    ids=["penalty", "logprobs", "min_tokens"],
)
def test_what_is_asked_of_scores_waits_for_nothing(sampling: Sampling) -> None:
    """The sampler knows the token on its way, on the device."""
    under_test = overlapping()
    under_test.submit(Submit("a", [1, 2, 3], sampling))
    under_test.run_to_end()

    assert len(under_test.tokens("a")) == 8
    assert under_test.engine.load().overlap_fallbacks == 0


def test_plain_requests_never_wait() -> None:
    """Nor while others arrive and prompts are cut in chunks."""
    under_test = overlapping(Limits(8, 9))
    for number in range(6):
        under_test.submit(a_submit(f"{number}", list(range(number, number + 25)), max_tokens=6))
        under_test.step()
    under_test.run_to_end()

    assert under_test.engine.load().overlap_fallbacks == 0


@pytest.mark.parametrize("broken_step", [1, 2, 3])
def test_a_request_that_breaks_a_step_fails_alone(broken_step: int) -> None:
    """The step behind is run again too: it was launched with what the broken one sampled."""
    under_test = overlapping()
    launches = BreakingRunner(under_test, broken_step)
    submits = [a_submit(id, [n, 1, 2], max_tokens=6) for n, id in enumerate(("x", "bad", "y"))]
    under_test.submit(*submits)
    under_test.run_to_end()

    assert launches.num_broken == 1
    assert under_test.outputs["bad"][-1].error == "not a number"
    for submit in (submits[0], submits[2]):
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)
    assert under_test.engine.load().kv_used_blocks == 0


class BreakingRunner:
    """Lets one step of an engine break when its tokens are asked for."""

    def __init__(self, under_test: EngineUnderTest, broken_step: int) -> None:
        steps = under_test.engine._steps
        self.num_broken = 0
        self._launches = 0
        self._broken_step = broken_step
        self._inner = steps._runner
        steps._runner = self

    def launch(self, batch: Batch) -> "BreakingRunner.BrokenFlight":
        self._launches += 1
        return self.BrokenFlight(self, self._inner.launch(batch), self._launches)

    class BrokenFlight:
        def __init__(self, owner: "BreakingRunner", inner: Flight, number: int) -> None:
            self._owner, self._inner, self._number = owner, inner, number

        def result(self) -> StepOutput:
            output = self._inner.result()
            if self._number == self._owner._broken_step:
                self._owner.num_broken += 1
                raise RequestError("bad", "not a number")
            return output


def test_a_broken_row_of_a_request_that_has_ended_is_nobody_s_fault() -> None:
    """It was aborted while its step ran: there is nobody to tell, and the others go on."""
    under_test = overlapping()
    BreakingRunner(under_test, broken_step=2)
    good = a_submit("good", max_tokens=6)
    under_test.submit(good, a_submit("bad", max_tokens=6))
    under_test.step()
    under_test.step()
    under_test.engine.abort(["bad"])
    under_test.run_to_end()

    assert under_test.tokens("good") == answer(good, under_test.info, 128)
    assert under_test.finish("bad") == "abort"


def test_limits_name_the_first_step_that_can_see_them() -> None:
    """The one in flight was chosen before."""
    under_test = overlapping()
    under_test.submit(a_submit("a", max_tokens=9))
    under_test.step()

    state = under_test.engine.set_limits(SetLimits(call=1, epoch=1, token_budget=32))
    under_test.run_to_end()

    epochs = [(record.seq, record.epoch) for record in under_test.engine.log.take()]
    assert state.since_step == 1
    assert min(seq for seq, epoch in epochs if epoch == 1) == 1


class TimedRunner(LateRunner):
    """A device that needs `step_s` for each step, one after the other, on a clock that is moved."""

    def __init__(self, runner: FakeRunner, num_rows: int, clock: ManualClock, step_s: float):
        super().__init__(runner, num_rows)
        self._clock = clock
        self._step_s = step_s
        self._free_at = 0.0
        self.ends: dict[LateFlight, float] = {}

    def launch(self, batch: Batch) -> LateFlight:
        flight = super().launch(batch)
        assert isinstance(flight, LateFlight)
        self._free_at = max(self._free_at, self._clock.now) + self._step_s
        self.ends[flight] = self._free_at
        return flight

    def run_until(self, last: LateFlight) -> StepOutput:
        self._clock.now = max(self._clock.now, self.ends[last])
        return super().run_until(last)


@pytest.mark.parametrize(
    ("host_s", "wall_ms", "host_ms"),
    [(0.002, 10.0, 2.0), (0.015, 15.0, 15.0)],
    ids=["the host is hidden", "the device waits for the host"],
)
def test_a_step_s_wall_is_the_time_between_two_ends(
    host_s: float, wall_ms: float, host_ms: float
) -> None:
    """What a token costs: the step model is fitted to it."""
    clock, capacity = ManualClock(), a_capacity()
    runner = TimedRunner(FakeRunner(capacity), capacity.max_batch_size, clock, step_s=0.010)
    engine = Engine(
        runner,
        a_model_info(),
        capacity,
        NoPacer(),
        limits=Limits(8, 64),
        clock=clock,
        options=EngineOptions(overlap=True),
    )
    engine.submit(a_submit("a", max_tokens=12))
    began = clock.now
    while not engine.is_idle:
        clock.advance(host_s)
        engine.step()

    records = engine.log.take()
    assert [record.wall_ms for record in records[2:-1]] == pytest.approx([wall_ms] * 9)
    assert [record.host_ms for record in records[2:-1]] == pytest.approx([host_ms] * 9)
    total_ms = sum(record.wall_ms for record in records)
    assert total_ms <= (clock.now - began) * 1e3 + 1e-6


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    prompts=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 12), st.sampled_from(LANES)),
        min_size=1,
        max_size=8,
    ),
    num_blocks=st.integers(12, 30),
    budget=st.integers(4, 40),
    batch_size=st.integers(1, 8),
)
def test_both_orders_give_the_same_tokens(
    prompts: list[tuple[int, int, Lane]], num_blocks: int, budget: int, batch_size: int
) -> None:
    """Whatever is preempted, displaced and cut in chunks on the way."""
    given = []
    for overlap in (False, True):
        under_test = EngineUnderTest(
            a_capacity(num_blocks=num_blocks, max_model_len=48),
            info=a_model_info(vocab_size=9, eos_token_ids=(0,)),
            limits=Limits(batch_size, max(budget, batch_size)),
            overlap=overlap,
        )
        for number, (length, max_tokens, lane) in enumerate(prompts):
            under_test.submit(
                a_submit(
                    f"{number}",
                    [position % 5 for position in range(length)],
                    max_tokens=max_tokens,
                    lane=lane,
                )
            )
            under_test.step()
        under_test.run_to_end()
        pool = under_test.engine.requests.blocks.pool
        assert pool.num_free == pool.num_blocks
        given.append(
            {
                id: (under_test.tokens(id), under_test.finish(id))
                for id in map(str, range(len(prompts)))
            }
        )

    assert given[0] == given[1]
