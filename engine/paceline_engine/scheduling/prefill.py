"""Which prompts the next step computes: those begun, then those admitted, lane by lane in turn.

A lane's turn comes by its share of the prefill tokens (`fair_share`). Where an interactive
request finds no row or no blocks, batch requests that hold more than their lane's share give
theirs up, the last that arrived first; each of them does so a few times at most.
"""

from collections.abc import Container, Iterator
from itertools import islice

from paceline_engine.core.batch import ScheduledChunk
from paceline_engine.core.request import Request, State
from paceline_engine.pacing.pacer import MOST_PROMPTS, Prompt
from paceline_engine.scheduling.fair_share import FairShare, Interactive
from paceline_engine.scheduling.request_table import LANES, RequestTable
from paceline_wire.limits import Lane, Limits

MIN_CHUNK = 16
"""Smaller chunks of a long prompt cost more in overhead than they bring in fairness."""

MAX_UNFINISHED = 2
"""Unfinished prompts up to which a step may begin another one that it cannot finish.

Prompts in progress share the tokens, so each one more delays the first token of all of them, and
a request that waits in the queue can still be refused in time.
"""

MANY_PROMPTS = 4
"""With more prompts than this begun or waiting, prompts fill every step."""


class Prefills:
    """Shares a step's prefill tokens, and admits the requests that get some."""

    def __init__(self, requests: RequestTable, fair_share: FairShare) -> None:
        self._requests = requests
        self._blocks = requests.blocks
        self._fair_share = fair_share
        self._has_displaced = False

    @property
    def is_crowded(self) -> bool:
        """Whether so many prompts are begun or waiting that they fill every step."""
        return len(self._requests.prefilling) + self._requests.num_waiting > MANY_PROMPTS

    def wanted(self, limits: Limits) -> int:
        """Tokens that could be prefilled now; counted no further than a step can use."""
        begun = self._requests.prefilling.values()
        return sum(r.num_remaining for r in begun) + sum(
            len(request.token_ids) for request in self._startable(limits)
        )

    def ahead(self, limits: Limits) -> list[Prompt]:
        """List the first prompts that the next step may compute, by what each has left."""
        begun = self._requests.prefilling.values()
        prompts = [(r.num_remaining, r.num_computed) for r in islice(begun, MOST_PROMPTS)]
        for request in islice(self._startable(limits), MOST_PROMPTS - len(prompts)):
            held = self._blocks.foreseen(request)
            prompts.append((len(request.token_ids) - held, held))
        return prompts

    def wanted_by_people(self, limits: Limits, *, may_admit: bool) -> int:
        """Count the tokens of interactive prompts that the next step would compute, had it room."""
        begun = sum(
            request.num_remaining
            for request in self._requests.prefilling.values()
            if request.lane == "interactive" and not self._requests.is_held(request)
        )
        if not (may_admit and self._is_room_for_people(limits)):
            return begun
        starting = islice(self._startable(limits), MOST_PROMPTS)
        return begun + sum(
            len(request.token_ids) - self._blocks.foreseen(request)
            for request in starting
            if request.lane == "interactive"
        )

    def _is_room_for_people(self, limits: Limits) -> bool:
        """Tell whether the first interactive request that waits is admitted, displacing nobody."""
        head = self._requests.waiting["interactive"].head
        if head is None or not self._fair_share.may_admit("interactive", self._requests.waiting):
            return False
        left_free = self._blocks.pool.num_free - self._blocks.most_needed(head)
        return self._has_row(limits) and left_free >= self._requests.num_running

    def _has_row(self, limits: Limits) -> bool:
        return self._requests.num_running < limits.max_batch_size and self._requests.has_free_row

    def _startable(self, limits: Limits) -> Iterator[Request]:
        """Walk the waiting requests that find a row, no further than a step's tokens go."""
        wanted = sum(request.num_remaining for request in self._requests.prefilling.values())
        rows = limits.max_batch_size - self._requests.num_running
        for lane in LANES:
            waiting = self._requests.waiting[lane]
            spare = self._rows_to_take(limits) if lane == "interactive" and waiting else 0
            for request in waiting:
                if rows + spare <= 0 or wanted >= limits.token_budget:
                    break
                yield request
                wanted += len(request.token_ids)
                rows -= 1

    def share(
        self,
        tokens: int,
        limits: Limits,
        now: float,
        *,
        may_admit: bool,
        is_batch_paused: bool,
    ) -> list[ScheduledChunk]:
        """Share `tokens` among the prompts, of people alone where the batch lane pauses.

        A request that is displaced meanwhile loses its row.
        """
        begun: dict[Lane, Iterator[Request]] = {
            lane: filter(
                _is_running,
                [
                    request
                    for request in self._requests.prefilling.values()
                    if request.lane == lane and not self._requests.is_held(request)
                ],
            )
            for lane in LANES
        }
        open_lanes: set[Lane] = {request.lane for request in self._requests.prefilling.values()}
        open_lanes.update(lane for lane in LANES if self._requests.waiting[lane])
        step_share = self._fair_share.begin(open_lanes, tokens, limits, self._interactive())
        if is_batch_paused and "batch" in open_lanes:
            step_share.close("batch")
        blocked: set[Lane] = set()
        grants: dict[Request, int] = {}
        self._has_displaced = False
        while lane := step_share.next_lane():
            request = next(begun[lane], None)
            if request is None and may_admit:
                is_crowded = step_share.num_unfinished(lane) >= MAX_UNFINISHED
                most = (
                    step_share.left(lane) if is_crowded else self._requests.capacity.max_model_len
                )
                request = self._admit_next(lane, limits, now, blocked, most=most, served=grants)
            if request is None:
                step_share.close(lane)
                continue
            grants[request] = _chunk_tokens(request.num_remaining, step_share.left(lane))
            step_share.charge(
                lane, grants[request], finishes=grants[request] == request.num_remaining
            )
        for request, granted in grants.items():
            more = min(request.num_remaining - granted, step_share.left(request.lane))
            grants[request] += more
            step_share.charge(request.lane, more)
        return [_chunk(request, count) for request, count in grants.items()]

    def _interactive(self) -> Interactive:
        """Sum up what the interactive lane is about to do."""
        begun = sum(
            r.num_remaining for r in self._requests.prefilling.values() if r.lane != "batch"
        )
        waiting = self._requests.waiting["interactive"].num_tokens
        return Interactive(
            begun + waiting, is_running=self._requests.num_running_of["interactive"] > 0
        )

    def _admit_next(
        self,
        lane: Lane,
        limits: Limits,
        now: float,
        blocked: set[Lane],
        *,
        most: int,
        served: Container[Request],
    ) -> Request | None:
        """Admit the first request of a lane, if there is a row and room for all it has.

        One with over `most` known tokens stays where it is.
        """
        request = self._requests.waiting[lane].head
        if request is None or len(request.token_ids) > most:
            return None
        if not self._fair_share.may_admit(lane, self._requests.waiting):
            return None
        if lane == "batch" and not self._may_take_row(limits):
            return None
        has_row = self._has_row(limits)
        if not self._allocate(request, limits, served, has_row=has_row):
            # A lane that already holds more than its share of the blocks is not overtaken.
            if has_row and not self._holds_blocks_beyond_share(lane, limits):
                blocked.add(lane)
            return None
        request.is_aged = request.is_aged or self._fair_share.admitted(lane, blocked)
        self._requests.admit(request, now)
        return request

    def _allocate(
        self, request: Request, limits: Limits, served: Container[Request], *, has_row: bool
    ) -> bool:
        """Hold the blocks of all known tokens, displacing batch requests if need be."""
        # Each running request may soon need a block more: leave it, or it would preempt at once.
        if has_row and self._blocks.allocate(request, spare=self._requests.num_running):
            return True
        if request.lane != "interactive" or not self._requests.num_running_of["batch"]:
            return False
        leaving = self._who_leaves(request, limits, served, needs_row=not has_row)
        for other in leaving:
            self._has_displaced = True
            self._requests.displace(other)
        return bool(leaving) and self._blocks.allocate(request, spare=self._requests.num_running)

    def _who_leaves(
        self, request: Request, limits: Limits, served: Container[Request], *, needs_row: bool
    ) -> list[Request]:
        """Choose batch requests to preempt whose rows and blocks suffice; empty if none do."""
        if needs_row and self._rows_to_take(limits) == 0:
            return []
        free = self._blocks.pool.num_free - self._blocks.most_needed(request)
        held = self._batch_blocks()
        kept = limits.batch_share * self._requests.capacity.num_blocks
        leaving: list[Request] = []
        for other in self._requests.yielding():
            has_room = free >= self._requests.num_running - len(leaving)
            if has_room and (leaving or not needs_row):
                break
            is_over_share = held > kept if leaving or not needs_row else True
            if other in served or not is_over_share:
                continue
            leaving.append(other)
            free += self._blocks.held_alone(other)
            held -= len(other.block_ids)
        return leaving if free >= self._requests.num_running - len(leaving) else []

    def _may_take_row(self, limits: Limits) -> bool:
        """Tell whether a batch request may take a row that no interactive request would reclaim."""
        if self._has_displaced:
            return False
        kept = max(1, _rows_kept(limits))
        rows = limits.max_batch_size - self._requests.num_running
        return self._requests.num_running_of["batch"] < kept or rows > len(
            self._requests.waiting["interactive"]
        )

    def _rows_to_take(self, limits: Limits) -> int:
        """Count the rows that interactive requests may take from the batch lane if none is free."""
        num_batch = self._requests.num_running_of["batch"]
        if not num_batch or self._requests.num_running != limits.max_batch_size:
            return 0  # while a lowered batch size drains, nothing that runs is touched
        over = num_batch - _rows_kept(limits)
        return min(over, len(self._requests.yielding())) if over > 0 else 0

    def _holds_blocks_beyond_share(self, lane: Lane, limits: Limits) -> bool:
        kept = limits.batch_share * self._requests.capacity.num_blocks
        return lane == "batch" and self._batch_blocks() > kept

    def _batch_blocks(self) -> int:
        batch = (request for request in self._requests.running() if request.lane == "batch")
        return sum(len(request.block_ids) for request in batch)


def _is_running(request: Request) -> bool:
    return request.state is State.RUNNING


def _rows_kept(limits: Limits) -> int:
    """Count the rows that the batch lane does not have to give up: its share of the batch size."""
    return int(limits.batch_share * limits.max_batch_size)


def _chunk_tokens(remaining: int, left: int) -> int:
    """Choose how many of a prompt's `remaining` tokens to compute when `left` may be spent.

    A prompt that cannot be finished takes half, so however many long prompts stand in front of
    a short one, it starts in the same step. What nobody needs is given to the first afterwards.
    """
    if remaining <= left:
        return remaining
    return max(left // 2, min(left, MIN_CHUNK))


def _chunk(request: Request, count: int) -> ScheduledChunk:
    samples = count == request.num_remaining
    return ScheduledChunk(request, request.num_computed, count, samples=samples, is_decode=False)
