"""Which requests run, and how many tokens of each the next step computes.

Decodes come first, each with one token; what is left of the step's tokens goes to prompts, those
begun before those that wait. A request gets the blocks of all its known tokens when it is
admitted, so prefill never runs out of blocks half way; a decode that needs one more block when
none is free preempts, and an interactive request that finds no row or no blocks displaces batch
requests. Either loses its blocks and goes back to the front of its lane. What it had computed is
copied to host memory and back, or computed again, whichever is cheaper; its output is unchanged.
"""

from collections.abc import Collection, Iterator, Sequence

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.flight import Next
from paceline_engine.core.request import Request, State
from paceline_engine.drafting.ngram import NgramProposer
from paceline_engine.drafting.proposer import Proposer
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.pacing.pacer import Pacer, StepShape
from paceline_engine.scheduling import budget, in_flight, lane_target, policy
from paceline_engine.scheduling.deadlines import Deadlines
from paceline_engine.scheduling.drafted import Drafts
from paceline_engine.scheduling.plan import Plan
from paceline_engine.scheduling.prefill import Prefills
from paceline_engine.scheduling.rows import Rows
from paceline_engine.scheduling.slacks import Slacks
from paceline_engine.scheduling.waiting import LANES, WaitingLane
from paceline_wire import FinishReason
from paceline_wire.limits import Capacity, Lane, Limits


class Scheduler:
    """Owns the requests and their blocks. Knows neither the model nor the device."""

    may_wait = False
    """Requests may wait though nothing runs."""
    admits_any_time = True
    """Whoever waits gets a row as soon as one is free, whatever else runs."""

    def __init__(
        self,
        capacity: Capacity,
        pacer: Pacer,
        *,
        eos_token_ids: Collection[int] = (),
        prefix_caching: bool = True,
        swapper: Swapper | None = None,
        draft_tokens: int = 0,
        proposer: Proposer | None = None,
    ) -> None:
        """Guess up to `draft_tokens` tokens of each decode, 0 never; by lookup, if not told how."""
        self.blocks = BlockLedger(
            capacity.num_blocks,
            capacity.block_size,
            prefix_caching=prefix_caching,
            num_slots=0 if swapper is None else swapper.num_slots,
        )
        self._swapper = swapper
        self.deadlines = Deadlines()
        self.waiting: dict[Lane, WaitingLane] = {lane: WaitingLane() for lane in LANES}
        self.rows = Rows(capacity.max_batch_size)
        self.num_preemptions = 0
        """Times that a request lost its blocks, for whatever reason."""
        self.num_displaced = 0
        """Of them, batch requests that gave way to an interactive arrival."""
        self.num_swapped = 0
        """Of them, those whose blocks went to host memory."""
        self._capacity = capacity
        self._pacer = pacer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._requests: dict[str, Request] = {}
        self._prefills = Prefills(
            capacity, self.rows, self.waiting, self.blocks, displace=self._displace
        )
        self._slacks = Slacks()
        self.speculation = Speculation(
            draft_tokens, capacity.max_model_len, NgramProposer() if proposer is None else proposer
        )
        self._drafts = Drafts(self.speculation, self.blocks, pacer)

    @property
    def prefilling(self) -> dict[str, Request]:
        """Requests whose prompt is being computed."""
        return self.rows.prefilling

    @property
    def decoding(self) -> dict[str, Request]:
        """Requests that get a token in every step."""
        return self.rows.decoding

    @property
    def num_running(self) -> int:
        """Requests that hold a row and blocks."""
        return len(self.rows)

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
        return iter(self.rows)

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
            self.blocks.swap.release(request)
        else:
            self._leave_row(request)
        request.state = State.FINISHED
        request.finish = reason
        del self._requests[request.id]
        self.speculation.forget(request)

    def must_settle(self, limits: Limits) -> bool:
        """Tell whether the next step can be chosen only when the one in flight is settled.

        It needs the tokens, or may move blocks: those of a request in flight are written to.
        """
        return (
            not self.admits_any_time
            or self.speculation.max_tokens > 0
            or self.blocks.swap.is_in_use
            or in_flight.must_wait_for_tokens(self.rows)
            or in_flight.may_displace(self.rows, self.waiting["interactive"], self.blocks, limits)
            or in_flight.may_preempt(self.rows, self.blocks)
        )

    def schedule(self, limits: Limits, now: float) -> Plan:
        """Choose the next step. Empty only if no request is left beside those in flight.

        With a step in flight the caller has asked `must_settle` first.
        """
        preempted_before = self.num_preemptions
        decodes = [
            ScheduledChunk(request, request.num_computed, 1, samples=True, is_decode=True)
            for request in self._extend_decodes()
        ]
        context = sum(piece.start for piece in decodes) + len(decodes)
        preemptions = self.num_preemptions - preempted_before

        paced = lane_target.for_decodes(limits, self.decoding.values())
        shape = self._shape(len(decodes), context, paced, now)
        total = budget.step_tokens(
            self._pacer.token_total(shape, paced),
            decodes=len(decodes),
            wants_prefill=shape.prefill_wanted > 0,
            limits=limits,
        )
        # Whoever was just preempted would come straight back and preempt again.
        may_admit = preemptions == 0
        prefills = self._prefills.share(total - len(decodes), limits, now, may_admit=may_admit)
        if self.num_preemptions - preempted_before > preemptions:
            decodes = [piece for piece in decodes if piece.request.state is State.RUNNING]
            context = sum(piece.start for piece in decodes) + len(decodes)
        batch, draft_ms = Batch((*decodes, *prefills), num_decodes=len(decodes)), 0.0
        if decodes and not prefills and self.speculation.max_tokens:
            room = total - len(decodes)
            allowed_ms = self._pacer.allowed_ms(shape, paced)
            batch, draft_ms = self._drafts.batch(
                decodes, context=context, room=room, allowed_ms=allowed_ms
            )
        copies = self.blocks.swap.take_copies()
        return Plan(batch, total, preemptions, context, copies, draft_ms)

    def settle(self, batch: Batch, tokens: Sequence[Next], now: float) -> list[Request]:
        """Take in the step launched first; the requests that got a token, some of them finished."""
        self._slacks.advance()
        sampled = []
        for piece, token in zip(batch.chunks, tokens, strict=True):
            request = piece.request
            # Who ended while the step was on its way gets nothing of it.
            if piece.is_padding or request.state is not State.RUNNING:
                continue
            if token is not None:
                request.num_in_flight -= 1
            if isinstance(token, tuple):
                self._settle_draft(piece, token)
                sampled.append(request)
                continue
            # No further: of what later steps in flight compute, the tokens are not known.
            self.blocks.cache_blocks(request, piece.start, piece.start + piece.count)
            if token is None:
                continue
            request.token_ids.append(token)
            request.num_newest = 1
            sampled.append(request)
            if not piece.is_decode:
                self._begin_decode(request, now)
            reason = self._finish_reason(request, token)
            if reason is not None:
                self.finish(request, reason)
        return sampled

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        return policy.finish_reason(
            request,
            token,
            eos_token_ids=self._eos_token_ids,
            max_model_len=self._capacity.max_model_len,
        )

    def _begin_decode(self, request: Request, now: float) -> None:
        # Whoever was preempted keeps the clock of its first token, as its client does.
        request.first_token_at = now if request.first_token_at is None else request.first_token_at
        self._slacks.follow(request, request.first_token_at)

    def _settle_draft(self, piece: ScheduledChunk, tokens: Sequence[int]) -> None:
        request = piece.request
        reason = self._drafts.take_in(piece, tokens, self._finish_reason)
        if reason is not None:
            self.finish(request, reason)
            return
        self._slacks.leave(request)
        self._slacks.follow(request, request.first_token_at or 0.0)

    def _extend_decodes(self) -> list[Request]:
        """Give a block to each decode whose blocks are full; preempt where none is free.

        Which decodes there are: not those that end with the token in flight.
        """
        longest = self._capacity.max_model_len
        going_on = [
            request
            for request in self.decoding.values()
            if not request.num_in_flight or in_flight.wants_more(request, longest)
        ]
        full = [request for request in going_on if self.blocks.is_full(request)]
        for request in full:
            while request.state is State.RUNNING and self.blocks.pool.num_free == 0:
                self._preempt(policy.victim(self.running()))
            if request.state is State.RUNNING:
                self.blocks.extend(request)
        if not full:
            return going_on
        return [request for request in going_on if request.state is State.RUNNING]

    def _preempt(self, request: Request) -> None:
        assert not request.num_in_flight  # noqa: S101 - `must_settle` saw to it
        self.num_swapped += self._has_saved(request)
        self._leave_row(request)
        request.state = State.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting[request.lane].put_back(request)

    def _has_saved(self, request: Request) -> bool:
        """Copy what it has computed, if that and the copy back are cheaper than computing again."""
        if self._swapper is None:
            return False
        copies_ms = 2 * self._swapper.ms(self.blocks.num_computed_blocks(request))
        recompute_ms = policy.recompute_ms(self._pacer, request.num_computed)
        is_cheaper = recompute_ms is not None and copies_ms < recompute_ms
        return is_cheaper and self.blocks.save(request)

    def _displace(self, request: Request) -> None:
        self.num_displaced += 1
        self._preempt(request)

    def _leave_row(self, request: Request) -> None:
        self.blocks.free(request)
        self.rows.leave(request)
        self._slacks.leave(request)

    def _shape(self, decode: int, context: int, limits: Limits, now: float) -> StepShape:
        first = next(iter(self.prefilling.values()), None)
        # With many prompts at hand every step is full, and a long one only leaves the next less:
        # then steps keep their plain target.
        is_crowded = len(self.prefilling) + self.num_waiting > budget.MANY_PROMPTS
        return StepShape(
            decode=decode,
            context=context,
            prefill_wanted=self._prefills.wanted(limits),
            prefill_context=first.num_computed if first else 0,
            slack_ms=None if is_crowded else self._slacks.ms(limits, now),
        )
