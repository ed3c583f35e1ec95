"""Whatever arrives, leaves and changes: no block, no token and no request is lost.

The runner keeps tokens where a model keeps keys and values and reads every context back, so a block
that is shared wrongly, freed early or written twice shows as a wrong token. Beside it the arrays of
every step are made from rows that live on, and must be those made anew.
"""

from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from paceline_engine.core.batch import Batch
from paceline_engine.core.block import Block
from paceline_engine.pacing.pacer import NoPacer, StepShape
from paceline_engine.scheduling import Scheduling
from paceline_engine.scheduling.request_table import LANES
from paceline_testing.engines import EngineUnderTest, a_capacity, a_model_info, a_submit, answer
from paceline_testing.fake_runner import FakeRunner, FakeSwapper, right_at
from paceline_testing.input_checker import InputChecker
from paceline_wire import SetLimits, StepFeatures, Submit
from paceline_wire.limits import Lane, Limits

SCHEDULINGS: tuple[Scheduling, ...] = ("continuous", "continuous", "dynamic", "static")
DRAFTING = ((0, None), (3, None), (3, 6), (7, 8), (5, 0))
"""Draft tokens at most, and how often of eight a draft model is right, if there is one."""
MAX_PROMPT = 40
MAX_OUTPUT = 24
MAX_MODEL_LEN = 48


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, as hypothesis draws it."""

    length: int
    seed: int
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    lane: Lane
    salt: str
    deadline_s: float | None

    def submit(self, *, id: str, now: float) -> Submit:
        """Make the message. Prompts of one seed are prefixes of each other."""
        room = MAX_MODEL_LEN - self.length
        return a_submit(
            id,
            [(position * (self.seed + 1) + position // 5) % 7 for position in range(self.length)],
            max_tokens=min(self.max_tokens, room),
            min_tokens=min(self.min_tokens, self.max_tokens, room),
            ignore_eos=self.ignore_eos,
            lane=self.lane,
            cache_salt=self.salt,
            deadline_at=None if self.deadline_s is None else now + self.deadline_s,
        )


arrivals = st.builds(
    Arrival,
    length=st.one_of(st.integers(1, 12), st.integers(1, MAX_PROMPT)),
    seed=st.integers(0, 3),
    max_tokens=st.sampled_from([1, 2, 5, 12, MAX_OUTPUT, MAX_OUTPUT]),
    min_tokens=st.sampled_from([0, 0, 0, 0, 2, 4]),  # above 0 no two steps overlap
    ignore_eos=st.sampled_from([True, True, False]),
    lane=st.sampled_from(LANES),
    salt=st.sampled_from(["", "", "tenant"]),
    deadline_s=st.one_of(st.none(), st.none(), st.floats(0.0, 60.0)),
)


class MoodyPacer(NoPacer):
    """Allows as few tokens as it was told to, even none."""

    def __init__(self) -> None:
        self.allowed = 1 << 30
        self.token_ms = 1.0

    def token_total(self, shape: StepShape, limits: Limits) -> int:  # noqa: ARG002 - the port's shape
        return self.allowed

    def predict_ms(self, step: StepFeatures) -> float:
        return 1.0 + self.token_ms * step.tokens


class EngineMachine(RuleBasedStateMachine):
    """Arrivals, cancels, deadlines and limits in any order, between any two steps."""

    @initialize(
        spare_blocks=st.integers(0, 10),
        block_size=st.sampled_from([1, 3, 4]),
        prefix_caching=st.booleans(),
        num_slots=st.sampled_from([0, 2, 9, 40]),
        scheduling=st.sampled_from(SCHEDULINGS),
        drafting=st.sampled_from(DRAFTING),
        token_ms=st.sampled_from([1.0, 0.01]),
        overlap=st.booleans(),
    )
    def start(  # noqa: PLR0917 - hypothesis passes them by name
        self,
        spare_blocks: int,
        block_size: int,
        prefix_caching: bool,
        num_slots: int,
        scheduling: Scheduling,
        drafting: tuple[int, int | None],
        token_ms: float,
        overlap: bool,
    ) -> None:
        draft_tokens, right_of_eight = drafting
        # The smallest pool holds one longest request and not a block more.
        num_blocks = -(-MAX_MODEL_LEN // block_size) + spare_blocks
        self.pacer = MoodyPacer()
        self.pacer.token_ms = token_ms
        self.under_test = EngineUnderTest(
            a_capacity(
                max_batch_size=6,
                max_token_budget=40,
                num_blocks=num_blocks,
                block_size=block_size,
                max_model_len=MAX_MODEL_LEN,
            ),
            # Few token ids: prompts share prefixes, and outputs end at the end-of-sequence id.
            info=a_model_info(vocab_size=7, eos_token_ids=(0,)),
            pacer=self.pacer,
            prefix_caching=prefix_caching,
            swapper=lambda runner: FakeSwapper(runner, num_slots),
            scheduling=scheduling,
            draft_tokens=draft_tokens,
            # Like the model's own runner it reads back all that it has computed of a request.
            draft_choice=None if right_of_eight is None else right_at(right_of_eight, 7),
            overlap=overlap,
        )
        self.is_paced = scheduling == "continuous"
        self.num_slots = num_slots
        self.rows = self.check_rows_of(self.under_test.runner, tokens_stay=True)
        self.under_test.runner.before_run = self.check_batch
        if (draft_runner := self.under_test.draft_runner) is not None:
            draft_runner.before_run = self.check_rows_of(draft_runner, tokens_stay=False).check
        self.engine = self.under_test.engine
        self.submitted: dict[str, Submit] = {}
        self.aborted: set[str] = set()
        self.epoch = 0
        self.running_before = 0

    def check_rows_of(self, runner: FakeRunner, *, tokens_stay: bool) -> InputChecker:
        capacity = self.under_test.capacity
        return InputChecker(capacity, runner.vocab_size, runner.choose, tokens_stay=tokens_stay)

    def check_batch(self, batch: Batch) -> None:
        """Called by the runner with each batch that the scheduler has made."""
        self.rows.check(batch)
        limits = self.engine.control.limits
        decodes = batch.num_decodes + batch.num_drafted
        allowed = max(min(limits.token_budget, self.pacer.allowed), decodes + 1)
        assert not self.is_paced or batch.num_tokens <= max(allowed, decodes)
        assert not self.is_paced or batch.num_padding == 0
        assert batch.num_tokens <= max(limits.token_budget, decodes)
        assert batch.num_tokens <= self.under_test.capacity.max_token_budget
        running = self.engine.requests.num_running
        assert running <= max(limits.max_batch_size, self.running_before)
        assert [chunk.is_decode for chunk in batch.chunks] == [True] * decodes + [False] * (
            len(batch.chunks) - decodes
        )

    @rule(arrival=arrivals)
    def arrive(self, arrival: Arrival) -> None:
        submit = arrival.submit(id=str(len(self.submitted)), now=self.under_test.clock.now)
        self.submitted[submit.id] = submit
        self.under_test.submit(submit)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.submitted)))
        is_live = self.engine.requests.get(id) is not None
        self.engine.abort([id])
        if is_live:
            self.aborted.add(id)
        assert self.engine.requests.get(id) is None

    @rule(
        max_batch_size=st.integers(1, 9),
        token_budget=st.integers(1, 60),
        shares=st.sampled_from([(0.8, 0.2), (0.5, 0.5), (1.0, 0.0), (0.0, 1.0)]),
        may_pause=st.booleans(),
    )
    def limit(
        self,
        max_batch_size: int,
        token_budget: int,
        shares: tuple[float, float],
        may_pause: bool,
    ) -> None:
        self.epoch += 1
        state = self.engine.set_limits(
            SetLimits(
                call=1,
                epoch=self.epoch,
                max_batch_size=max_batch_size,
                token_budget=token_budget,
                interactive_share=shares[0],
                batch_share=shares[1],
                may_pause_batch=may_pause,
            )
        )
        assert state.error is None
        assert state.effective.max_batch_size <= 6

    @rule(allowed=st.integers(0, 50))
    def pace(self, allowed: int) -> None:
        self.pacer.allowed = allowed

    @rule(block_ms=st.sampled_from([0.0, 1.0, 4.0, 1e9]))
    def price_copies(self, block_ms: float) -> None:
        swapper = self.under_test.swapper
        assert isinstance(swapper, FakeSwapper)
        swapper.block_ms = block_ms

    @precondition(lambda self: self.engine.requests.num_running > 1)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """For no reason at all: whoever runs may lose its blocks between any two steps."""
        self.engine.settle()  # nobody is preempted while a step of theirs is on its way
        requests = self.engine.requests
        if not requests.num_running:
            return
        requests.preempt(data.draw(st.sampled_from(list(requests.running()))))

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        self.under_test.clock.advance(seconds)

    @rule(steps=st.integers(1, 6))
    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.running_before = self.engine.requests.num_running
            self.under_test.step()
            self.blocks_are_counted()

    @invariant()
    def blocks_are_counted(self) -> None:
        """A block is held by exactly the requests that list it, or it is in the free list once."""
        if not hasattr(self, "engine"):
            return
        requests = self.engine.requests
        pool = requests.blocks.pool
        holders = Counter(
            block_id for request in requests.running() for block_id in request.block_ids
        )
        assert [pool.holders(id) for id in range(pool.num_blocks)] == [
            holders[id] for id in range(pool.num_blocks)
        ]
        free = free_list(pool._ends)
        assert sorted(free) == [id for id in range(pool.num_blocks) if not holders[id]]
        assert len(free) == pool.num_free
        rows = [request.row for request in requests.running()]
        assert len(rows) == len(set(rows)) == 6 - len(requests._free_rows)
        waiting = [request for lane in requests.waiting.values() for request in lane]
        assert all(not request.block_ids and request.row is None for request in waiting)
        assert not any(request.swap_slots for request in requests.running())
        saved = [slot for request in waiting for slot in request.swap_slots]
        assert len(set(saved)) == len(saved) == self.num_slots - requests.blocks.swap.num_free
        assert requests.num_waiting_tokens == sum(
            request.num_remaining for request in [*waiting, *requests.prefilling.values()]
        )

    def teardown(self) -> None:
        """Whatever happened, everyone still there is answered, alone as it would have been."""
        if not hasattr(self, "engine"):
            return
        self.under_test.clock.advance(1.0)  # nobody is waited for any more
        self.running_before = self.engine.requests.num_running  # the limit may be below it
        tokens = sum(len(s.prompt_ids) + s.sampling.max_tokens for s in self.submitted.values())
        steps = self.under_test.run_to_end(max_steps=50 + 10 * tokens)
        note(f"{len(self.submitted)} requests ended after {steps} steps")
        pool = self.engine.requests.blocks.pool
        assert pool.num_free == pool.num_blocks
        assert self.engine.requests.blocks.swap.num_free == self.num_slots
        assert self.engine.load().stuck_admissions == 0
        for submit in self.submitted.values():
            self.check_answer(submit)

    def check_answer(self, submit: Submit) -> None:
        expected = answer(submit, self.under_test.info, MAX_MODEL_LEN)
        got = self.under_test.tokens(submit.id)
        finishes = [output.finish for output in self.under_test.outputs[submit.id]]
        assert finishes[:-1] == [None] * (len(finishes) - 1)
        if submit.id in self.aborted:
            assert finishes[-1] == "abort"
            assert got == expected[: len(got)]
        elif finishes[-1] == "error":
            assert submit.deadline_at is not None
            assert got == expected[: len(got)]
        else:
            assert got == expected


def free_list(ends: Block) -> list[int]:
    """Walk the pool's ring."""
    found = []
    block = ends.after
    while block is not None and block is not ends:
        found.append(block.id)
        block = block.after
    return found


def test_nothing_is_lost_whatever_happens() -> None:
    """Random arrivals, cancels, deadlines, lanes, pacing and limits, over tiny pools."""
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,  # a run must not differ from the next; fuzz by raising max_examples
            database=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
