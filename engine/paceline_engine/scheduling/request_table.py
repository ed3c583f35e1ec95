"""Every request that has not finished: waiting in its lane, or running with a row and KV blocks.

Every scheduler moves requests between these places through this table, and nothing else does. A
request gets the blocks of all its known tokens when it is admitted. One that is preempted goes back
to the front of its lane, and what it had computed is copied to host memory and back, or computed
again, whichever is cheaper; its output is the same.

The counters of a step move when it is launched, and move back if nothing comes of it. So the next
step can be chosen before this one has given its tokens: a request's `num_in_flight` tokens are
those still to come.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, takewhile
from types import MappingProxyType

from paceline_engine.core.batch import Batch, Next, ScheduledChunk
from paceline_engine.core.request import Request, State
from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.pacing.lane_pace import LanePace
from paceline_engine.pacing.pacer import Pacer
from paceline_wire import FinishReason, StepFeatures
from paceline_wire.limits import Capacity, Lane
from paceline_wire.step_cost import chunk_attention

LANES: tuple[Lane, ...] = ("interactive", "batch")

MAX_PREEMPTIONS = 3
"""A batch request preempted this often ranks as interactive, or it might never finish.

So does one that was overtaken so often that the other lane had to wait for it.
"""


class WaitingLane:
    """Requests of one lane, first come, first served; one in the middle leaves in O(1).

    A request with a turn passes those with a later one that have never run. It passes nobody
    without a turn, so its place costs as many moves as there are requests that it passes.
    """

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self.num_tokens = 0
        """Tokens to compute before each has its next output token; prefix hits not deducted."""

    def __len__(self) -> int:
        """Count the requests."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Walk the requests, the next one first."""
        return iter(self._requests.values())

    @property
    def head(self) -> Request | None:
        """The request that is next."""
        return next(iter(self._requests.values()), None)

    def append(self, request: Request) -> None:
        """Queue a new request, before those whose turn comes later."""
        passed: list[str] = []
        if request.turn_at is not None:
            last_first = reversed(self._requests.values())
            passed = [other.id for other in takewhile(partial(_may_pass, request), last_first)]
        self._enter(request)
        for request_id in reversed(passed):
            self._requests.move_to_end(request_id)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request before all others."""
        self._enter(request)
        self._requests.move_to_end(request.id, last=False)

    def _enter(self, request: Request) -> None:
        self._requests[request.id] = request
        self.num_tokens += len(request.token_ids)

    def remove(self, request: Request) -> None:
        """Take out a request that is admitted, aborted or too late."""
        del self._requests[request.id]
        self.num_tokens -= len(request.token_ids)


def _may_pass(request: Request, other: Request) -> bool:
    """Tell whether a new request may go before one that waits."""
    if request.turn_at is None or other.turn_at is None or other.num_preemptions:
        return False
    return request.turn_at < other.turn_at


class RequestTable:
    """Owns the requests, their rows and their blocks. Knows neither the model nor the device."""

    def __init__(
        self,
        capacity: Capacity,
        pacer: Pacer,
        *,
        eos_token_ids: Collection[int] = (),
        prefix_caching: bool = True,
        swapper: Swapper | None = None,
    ) -> None:
        self.capacity = capacity
        self.blocks = BlockLedger(
            capacity.num_blocks,
            capacity.block_size,
            prefix_caching=prefix_caching,
            num_slots=0 if swapper is None else swapper.num_slots,
        )
        self.pace = LanePace()
        """How far ahead of their pace the decodes are."""
        self.waiting: Mapping[Lane, WaitingLane] = {lane: WaitingLane() for lane in LANES}
        self._prefilling: dict[str, Request] = {}
        self._decoding: dict[str, Request] = {}
        self._num_running: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self.prefilling: Mapping[str, Request] = MappingProxyType(self._prefilling)
        """Requests whose prompt is being computed; they hold a row."""
        self.decoding: Mapping[str, Request] = MappingProxyType(self._decoding)
        """Requests that get a token in every step, the batch lane's where it does not pause; they
        hold a row."""
        self.num_running_of: Mapping[Lane, int] = MappingProxyType(self._num_running)
        """The running requests of each lane."""
        self._free_rows = list(range(capacity.max_batch_size))[::-1]
        self.num_preemptions = 0
        """How often a request lost its blocks, for whatever reason."""
        self.num_displaced = 0
        """Preemptions of batch requests in favour of an interactive arrival."""
        self.num_swapped = 0
        """Preemptions whose blocks went to host memory."""
        self.num_drafted = 0
        """Draft tokens that were verified."""
        self.num_accepted = 0
        """Draft tokens that the model chose too."""
        self.accepted_lengths: Counter[int] = Counter()
        """Number of drafts by the number of their tokens that were accepted."""
        self._requests: dict[str, Request] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        """A heap of deadlines, the soonest first. Finished requests stay in it until theirs."""
        self._held: dict[str, tuple[Request, Callable[[], bool]]] = {}
        """Running requests that skip steps, each with a check that tells when it is ready."""
        self._unpaced: set[str] = set()
        """Decodes that have skipped a step since their last token."""
        self._pacer = pacer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._swapper = swapper

    def __len__(self) -> int:
        """Count the requests that have not finished."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Walk every request that has not finished."""
        return iter(list(self._requests.values()))

    def get(self, request_id: str) -> Request | None:
        """Look up a request that has not finished."""
        return self._requests.get(request_id)

    @property
    def num_running(self) -> int:
        """Requests that hold a row and blocks."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no row."""
        return sum(map(len, self.waiting.values()))

    @property
    def has_prompts(self) -> bool:
        """Whether any prompt is begun or waits."""
        return bool(self.prefilling) or self.num_waiting > 0

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens to be prefilled, of waiting and running requests."""
        queued = sum(lane.num_tokens for lane in self.waiting.values())
        return queued + sum(request.num_remaining for request in self._prefilling.values())

    @property
    def has_free_row(self) -> bool:
        """Whether the capacity has a row that nobody holds."""
        return bool(self._free_rows)

    def running(self) -> Iterator[Request]:
        """Walk the requests that hold a row, decodes first."""
        return chain(self._decoding.values(), self._prefilling.values())

    def add(self, request: Request) -> None:
        """Queue a request that has passed the intake."""
        self._requests[request.id] = request
        self.waiting[request.lane].append(request)
        if request.deadline_at is not None:
            heapq.heappush(self._deadlines, (request.deadline_at, request.number, request))

    def pop_late(self, now: float) -> list[Request]:
        """Take the requests whose deadline has passed, waiting and running ones."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.state is not State.FINISHED:
                late.append(request)
        return late

    def admit(self, request: Request, now: float) -> None:
        """Give a row to a waiting request whose blocks are allocated."""
        self.waiting[request.lane].remove(request)
        if request.scheduled_at is None:
            request.scheduled_at = now
        request.enter(self._free_rows.pop())
        self._num_running[request.lane] += 1
        self._prefilling[request.id] = request

    def hold(self, request: Request, is_ready: Callable[[], bool]) -> None:
        """Let a running request skip steps until `is_ready` returns true."""
        if request.state is State.RUNNING:
            self._held[request.id] = request, is_ready

    def is_held(self, request: Request) -> bool:
        """Tell whether a request skips this step."""
        return request.id in self._held

    def decode_chunks(self) -> list[ScheduledChunk]:
        """Schedule a token of each decode that goes on; preempt where one finds no block for it."""
        if self._held:
            self._wake()
        going_on = [
            request
            for request in self._decoding.values()
            if (not request.num_in_flight or self._goes_on(request))
            and request.id not in self._held
        ]
        full = [request for request in going_on if self.blocks.is_full(request)]
        for request in full:
            while request.state is State.RUNNING and self.blocks.pool.num_free == 0:
                self.preempt(max(self.running(), key=_expendability))
            if request.state is State.RUNNING:
                self.blocks.extend(request)
        if full:
            going_on = [request for request in going_on if request.state is State.RUNNING]
        return [
            ScheduledChunk(request, request.num_computed, 1, samples=True, is_decode=True)
            for request in going_on
        ]

    def _wake(self) -> None:
        """Resume held requests that are ready; all of them if no other runs: the step waits."""
        for request, is_ready in list(self._held.values()):
            if is_ready():
                del self._held[request.id]
        if len(self._held) == self.num_running:
            self._held.clear()

    def yielding(self) -> list[Request]:
        """List the requests that may be preempted for an interactive arrival, newest first.

        These are the running requests of the batch lane that were not preempted too often.
        """
        lower = [request for request in self.running() if _expendability(request)[0]]
        return sorted(lower, key=_expendability, reverse=True)

    def displace(self, request: Request) -> None:
        """Preempt a batch request in favour of an interactive arrival."""
        self.num_displaced += 1
        self.preempt(request)

    def preempt(self, request: Request) -> None:
        """Take row and blocks from a request, which waits at the front of its lane."""
        assert not request.num_in_flight  # noqa: S101 - `must_settle` saw to it
        self.num_swapped += self._has_saved(request)
        self._leave_row(request)
        request.state = State.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting[request.lane].put_back(request)

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

    def launched(self, batch: Batch) -> None:
        """Count a step's tokens as computed; a prompt that it completes decodes from now on."""
        for chunk in batch.chunks:
            if chunk.is_padding:
                continue
            request = chunk.request
            request.num_computed += chunk.count
            if chunk.samples:
                request.num_in_flight += 1
                if not chunk.is_decode:
                    self._decoding[request.id] = self._prefilling.pop(request.id)

    def withdraw(self, batch: Batch) -> None:
        """Undo `launched`, the newest step first: its requests run again as if it had not been."""
        for chunk in batch.chunks:
            request = chunk.request
            if chunk.is_padding or request.state is not State.RUNNING:
                continue
            request.num_computed = chunk.start
            if chunk.samples:
                request.num_in_flight -= 1
                if not chunk.is_decode:
                    self._prefilling[request.id] = self._decoding.pop(request.id)

    def settle(self, batch: Batch, tokens: Sequence[Next], now: float) -> list[Request]:
        """Append what a step sampled; return who got a token, some of them finished by it."""
        self.pace.advance(is_batch_paused=batch.is_batch_paused)
        sampled = []
        for chunk, token in zip(batch.chunks, tokens, strict=True):
            request = chunk.request
            # A request that ended while the step was in flight gets no token from it.
            if chunk.is_padding or request.state is not State.RUNNING:
                continue
            if token is None:
                self._settle_without_token(chunk)
                continue
            request.num_in_flight -= 1
            sampled.append(request)
            if isinstance(token, tuple):
                reason = self._append_draft(chunk, token)
            else:
                # No further: the tokens that later steps in flight compute are not known.
                self.blocks.cache_blocks(request, chunk.start, chunk.start + chunk.count)
                request.token_ids.append(token)
                request.num_newest = 1
                if not chunk.is_decode:
                    self._begin_decode(request, now)
                elif request.id in self._unpaced:
                    self._unpaced.remove(request.id)
                    self.pace.follow(request, request.first_token_at or 0.0)
                reason = self._finish_reason(request, token)
            if reason is not None:
                self.finish(request, reason)
        return sampled

    def _settle_without_token(self, chunk: ScheduledChunk) -> None:
        """Settle a chunk that gave no token: a part of a prompt, or a decode that must rerun."""
        request, end = chunk.request, chunk.start + chunk.count - len(chunk.draft)
        if chunk.samples:
            end -= 1
            request.num_computed = end
            request.num_in_flight -= 1
            if chunk.is_decode:
                # Everybody else is a token further.
                self.pace.leave(request)
                self._unpaced.add(request.id)
            else:
                self._prefilling[request.id] = self._decoding.pop(request.id)
        if end > chunk.start:
            self.blocks.cache_blocks(request, chunk.start, end)

    def _begin_decode(self, request: Request, now: float) -> None:
        # A preempted request keeps the time of its first token, as its client does.
        if request.first_token_at is None:
            request.first_token_at = now
        self.pace.follow(request, request.first_token_at)

    def _append_draft(self, chunk: ScheduledChunk, tokens: Sequence[int]) -> FinishReason | None:
        """Append the draft tokens that were accepted and one more, up to the request's end."""
        request = chunk.request
        self.num_drafted += len(chunk.draft)
        self.num_accepted += len(tokens) - 1
        self.accepted_lengths[len(tokens) - 1] += 1
        reason = None
        for count, token in enumerate(tokens, 1):
            request.token_ids.append(token)
            request.num_newest = count
            reason = self._finish_reason(request, token)
            if reason is not None:
                break
        # The last token's keys and values are not computed: another token stood in its place.
        request.num_computed = len(request.token_ids) - 1
        self.blocks.cache_blocks(request, chunk.start, request.num_computed)
        self._unpaced.discard(request.id)
        self.pace.leave(request)
        self.pace.follow(request, request.first_token_at or 0.0)
        return reason

    def _goes_on(self, request: Request) -> bool:
        """Tell whether a decode may go on after its token in flight, which is not known yet."""
        coming = request.num_in_flight
        return (
            request.num_output_tokens + coming < request.sampling.max_tokens
            and len(request.token_ids) + coming < self.capacity.max_model_len
        )

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        """Decide whether the token just appended was the request's last."""
        sampling = request.sampling
        num_output = request.num_output_tokens
        if num_output >= sampling.min_tokens and (
            (token in self._eos_token_ids and not sampling.ignore_eos)
            or token in sampling.stop_token_ids
        ):
            return "stop"
        if (
            num_output >= sampling.max_tokens
            or len(request.token_ids) >= self.capacity.max_model_len
        ):
            return "length"
        return None

    def _leave_row(self, request: Request) -> None:
        assert request.row is not None  # noqa: S101 - every running request holds one
        self.blocks.free(request)
        self._free_rows.append(request.row)
        request.row = None
        self._held.pop(request.id, None)
        self._unpaced.discard(request.id)
        self._num_running[request.lane] -= 1
        (self._decoding if request.id in self._decoding else self._prefilling).pop(request.id)
        self.pace.leave(request)

    def _has_saved(self, request: Request) -> bool:
        """Copy what it has computed, if that and the copy back are cheaper than computing again."""
        if self._swapper is None:
            return False
        copies_ms = 2 * self._swapper.ms(self.blocks.num_computed_blocks(request))
        recompute_ms = _recompute_ms(self._pacer, request.num_computed)
        is_cheaper = recompute_ms is not None and copies_ms < recompute_ms
        return is_cheaper and self.blocks.save(request)


def _expendability(request: Request) -> tuple[bool, int]:
    """Return the rank for preemption: the batch lane first, within a lane the newest request.

    The oldest interactive request is preempted only where it runs alone, so it always finishes.
    """
    has_waited = request.is_aged or request.num_preemptions >= MAX_PREEMPTIONS
    return request.lane == "batch" and not has_waited, request.number


def _recompute_ms(pacer: Pacer, num_tokens: int) -> float | None:
    """Predict the ms that computing `num_tokens` adds to other steps; None without a step model."""
    attention = int(chunk_attention(num_tokens, before=0))
    whole = pacer.predict_ms(StepFeatures(0, num_tokens, 0, attention))
    empty = pacer.predict_ms(StepFeatures(0, 0, 0, 0))
    return whole - empty if whole > 0 else None
