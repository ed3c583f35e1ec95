"""Which requests run, and how many tokens of each the next step computes.

Decodes come first, each with one token; what is left of the step's tokens goes to prompts, those
begun before those that wait. A request gets the blocks of all its known tokens when it is
admitted, so prefill never runs out of blocks half way; a decode that needs one more block when
none is free preempts. A preempted request loses its blocks, goes back to the front of its lane and
is computed again, its output unchanged.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.limits import Capacity, Lane, Limits
from paceline_engine.pacing.pacer import Pacer, StepShape
from paceline_engine.pacing.slack import Slack
from paceline_engine.request import Request, State
from paceline_engine.scheduling import budget, policy
from paceline_engine.scheduling.batch import Batch, Slice
from paceline_engine.scheduling.deadlines import Deadlines
from paceline_engine.scheduling.waiting import LANES, Turns, WaitingLane
from paceline_engine.wire import FinishReason


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next step does."""

    batch: Batch
    token_total: int
    """Tokens that the step might have held."""
    preemptions: int
    context: int
    """Sum of the context lengths of the decodes, tokens."""


class Scheduler:
    """Owns the requests and their blocks. Knows neither the model nor the device."""

    def __init__(
        self,
        capacity: Capacity,
        pacer: Pacer,
        *,
        eos_token_ids: Collection[int] = (),
        prefix_caching: bool = True,
    ) -> None:
        self.blocks = BlockLedger(
            capacity.num_blocks, capacity.block_size, prefix_caching=prefix_caching
        )
        self.deadlines = Deadlines()
        self.waiting: dict[Lane, WaitingLane] = {lane: WaitingLane() for lane in LANES}
        self.prefilling: dict[str, Request] = {}
        self.decoding: dict[str, Request] = {}
        self.num_preemptions = 0
        self._capacity = capacity
        self._pacer = pacer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._free_rows = list(range(capacity.max_batch_size))[::-1]
        self._requests: dict[str, Request] = {}
        self._turns = Turns()
        self._slack = Slack()

    @property
    def num_running(self) -> int:
        """Requests that hold a row and blocks."""
        return len(self.prefilling) + len(self.decoding)

    @property
    def num_waiting(self) -> int:
        """Requests that hold nothing yet, or nothing any more."""
        return sum(map(len, self.waiting.values()))

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens to be prefilled, of waiting and running requests."""
        queued = sum(lane.num_tokens for lane in self.waiting.values())
        return queued + sum(request.num_remaining for request in self.prefilling.values())

    def running(self) -> Iterator[Request]:
        """Walk the requests that hold a row."""
        return chain(self.decoding.values(), self.prefilling.values())

    def requests(self) -> list[Request]:
        """List every request that is not finished."""
        return list(self._requests.values())

    def get(self, request_id: str) -> Request | None:
        """Look up a request that is not finished."""
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Queue a request that has passed the intake."""
        self._requests[request.id] = request
        self.waiting[request.lane].append(request)
        self.deadlines.add(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is, and free what it holds."""
        if request.state is State.WAITING:
            self.waiting[request.lane].remove(request)
        else:
            self._leave_row(request)
        request.state = State.FINISHED
        request.finish = reason
        del self._requests[request.id]

    def schedule(self, limits: Limits, now: float) -> Plan:
        """Choose the next step. Empty only if no request is left."""
        preempted_before = self.num_preemptions
        self._extend_decodes()
        decodes = [
            Slice(request, request.num_computed, 1, samples=True, is_decode=True)
            for request in self.decoding.values()
        ]
        context = sum(piece.start for piece in decodes) + len(decodes)
        preemptions = self.num_preemptions - preempted_before

        shape = self._shape(len(decodes), context, limits, now)
        total = budget.step_tokens(
            self._pacer.token_total(shape, limits),
            decodes=len(decodes),
            wants_prefill=shape.prefill_wanted > 0,
            limits=limits,
        )
        # Whoever was just preempted would come straight back and preempt again.
        may_admit = preemptions == 0
        prefills = self._prefill(total - len(decodes), limits, now, may_admit=may_admit)
        batch = Batch((*decodes, *prefills), num_decodes=len(decodes))
        return Plan(batch, total, preemptions, context)

    def settle(self, batch: Batch, tokens: Sequence[int | None], now: float) -> list[Request]:
        """Take in a step that has run; the requests that got a token, some of them finished."""
        self._slack.advance()
        sampled = []
        for piece, token in zip(batch.slices, tokens, strict=True):
            request = piece.request
            request.num_computed += piece.count
            self.blocks.seal(request, piece.start)
            if token is None:
                continue
            request.token_ids.append(token)
            sampled.append(request)
            if not piece.is_decode:
                self._begin_decode(request, now)
            reason = policy.finish_reason(
                request,
                token,
                eos_token_ids=self._eos_token_ids,
                max_model_len=self._capacity.max_model_len,
            )
            if reason is not None:
                self.finish(request, reason)
        return sampled

    # --- decode --------------------------------------------------------------------------------

    def _begin_decode(self, request: Request, now: float) -> None:
        self.decoding[request.id] = self.prefilling.pop(request.id)
        # Whoever was preempted keeps the clock of its first token, as its client does.
        request.first_token_at = now if request.first_token_at is None else request.first_token_at
        self._slack.begin(
            request.id, first_at=request.first_token_at, generated=request.num_output_tokens
        )

    def _extend_decodes(self) -> None:
        """Give a block to each decode whose blocks are full; preempt where none is free."""
        full = [request for request in self.decoding.values() if self.blocks.is_full(request)]
        for request in full:
            while request.state is State.RUNNING and self.blocks.pool.num_free == 0:
                self._preempt(policy.victim(self.running()))
            if request.state is State.RUNNING:
                self.blocks.extend(request)

    def _preempt(self, request: Request) -> None:
        self._leave_row(request)
        request.state = State.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting[request.lane].put_back(request)

    def _leave_row(self, request: Request) -> None:
        self.blocks.give_up(request)
        assert request.row is not None  # noqa: S101 - every running request holds one
        self._free_rows.append(request.row)
        request.row = None
        (self.decoding if request.id in self.decoding else self.prefilling).pop(request.id)
        self._slack.end(request.id)

    # --- prefill -------------------------------------------------------------------------------

    def _prefill_wanted(self, limits: Limits) -> int:
        """Tokens that could be prefilled now; counted no further than a step can use."""
        wanted = sum(request.num_remaining for request in self.prefilling.values())
        rows = limits.max_batch_size - self.num_running
        for request in chain.from_iterable(self.waiting.values()):
            if rows <= 0 or wanted >= limits.token_budget:
                break
            wanted += len(request.token_ids)
            rows -= 1
        return wanted

    def _shape(self, decode: int, context: int, limits: Limits, now: float) -> StepShape:
        first = next(iter(self.prefilling.values()), None)
        pace_ms = limits.pace_tpot_ms
        # With many prompts at hand every step is full, and a long one only leaves the next less:
        # then steps keep their plain target.
        is_crowded = len(self.prefilling) + self.num_waiting > budget.MANY_PROMPTS
        return StepShape(
            decode=decode,
            context=context,
            prefill_wanted=self._prefill_wanted(limits),
            prefill_context=first.num_computed if first else 0,
            slack_ms=None if pace_ms is None or is_crowded else self._slack.ms(pace_ms, now),
        )

    def _prefill(self, tokens: int, limits: Limits, now: float, *, may_admit: bool) -> list[Slice]:
        """Share `tokens` among the prompts, lane by lane in turn."""
        begun: dict[Lane, Iterator[Request]] = {
            lane: iter([r for r in self.prefilling.values() if r.lane == lane]) for lane in LANES
        }
        open_lanes: set[Lane] = {request.lane for request in self.prefilling.values()}
        open_lanes.update(lane for lane in LANES if self.waiting[lane])
        blocked: set[Lane] = set()
        grants: dict[Request, int] = {}
        num_unfinished = 0
        self._turns.begin(open_lanes)
        while tokens > 0 and open_lanes:
            lane = self._turns.next(sorted(open_lanes, reverse=True))
            request = next(begun[lane], None)
            if request is None and may_admit:
                is_crowded = num_unfinished >= budget.MAX_UNFINISHED
                most = tokens if is_crowded else self._capacity.max_model_len
                request = self._admit_next(lane, limits, now, blocked, most=most)
            if request is None:
                open_lanes.remove(lane)
                continue
            grants[request] = budget.chunk(request.num_remaining, tokens)
            num_unfinished += grants[request] < request.num_remaining
            tokens -= grants[request]
            self._turns.charge(lane, grants[request], limits)
        for request, granted in grants.items():
            more = min(request.num_remaining - granted, tokens)
            grants[request] += more
            tokens -= more
            self._turns.charge(request.lane, more, limits)
        return [self._chunk(request, count) for request, count in grants.items()]

    def _chunk(self, request: Request, count: int) -> Slice:
        samples = count == request.num_remaining
        return Slice(request, request.num_computed, count, samples=samples, is_decode=False)

    # --- admission -----------------------------------------------------------------------------

    def _admit_next(
        self, lane: Lane, limits: Limits, now: float, blocked: set[Lane], *, most: int
    ) -> Request | None:
        """Admit the first request of a lane, if there is a row and room for all it has.

        One with over `most` known tokens stays where it is.
        """
        request = self.waiting[lane].head
        if request is None or self.num_running >= limits.max_batch_size or not self._free_rows:
            return None
        if len(request.token_ids) > most or not self._turns.may_admit(lane, self.waiting):
            return None
        # Each running request may soon need a block more: leave it, or it would preempt at once.
        if not self.blocks.take(request, spare=self.num_running):
            blocked.add(lane)
            return None
        self.waiting[lane].remove(request)
        self._turns.admitted(lane, blocked)
        request.state = State.RUNNING
        request.row = self._free_rows.pop()
        if request.scheduled_at is None:
            request.scheduled_at = now
        self.prefilling[request.id] = request
        return request
