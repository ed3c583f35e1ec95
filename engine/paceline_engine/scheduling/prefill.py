"""Which prompts the next step computes: those begun, then those admitted, lane by lane in turn.

A lane's turn comes by its share of the prefill tokens (`turns`). Where an interactive
request finds no row or no blocks, batch requests that hold more than their lane's share give
theirs up, the last that arrived first; each of them does so a few times at most.
"""

from collections.abc import Callable, Container, Iterator, Mapping

from paceline_engine.core.batch import ScheduledChunk
from paceline_engine.core.request import Request, State
from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.scheduling import budget, policy
from paceline_engine.scheduling.rows import Rows
from paceline_engine.scheduling.turns import FairShare, Interactive
from paceline_engine.scheduling.waiting import LANES, WaitingLane
from paceline_wire.limits import Capacity, Lane, Limits


class Prefills:
    """Shares a step's prefill tokens, and admits whom they can be given to."""

    def __init__(
        self,
        capacity: Capacity,
        rows: Rows,
        waiting: Mapping[Lane, WaitingLane],
        blocks: BlockLedger,
        *,
        displace: Callable[[Request], None],
    ) -> None:
        self._capacity = capacity
        self._rows = rows
        self._waiting = waiting
        self._blocks = blocks
        self._displace = displace
        self._turns = FairShare()
        self._has_displaced = False

    def wanted(self, limits: Limits) -> int:
        """Tokens that could be prefilled now; counted no further than a step can use."""
        wanted = sum(request.num_remaining for request in self._rows.prefilling.values())
        rows = limits.max_batch_size - len(self._rows)
        for lane in LANES:
            waiting = self._waiting[lane]
            spare = self._rows_to_take(limits) if lane == "interactive" and waiting else 0
            for request in waiting:
                if rows + spare <= 0 or wanted >= limits.token_budget:
                    break
                wanted += len(request.token_ids)
                rows -= 1
        return wanted

    def share(
        self, tokens: int, limits: Limits, now: float, *, may_admit: bool
    ) -> list[ScheduledChunk]:
        """Share `tokens` among the prompts. Whoever is displaced meanwhile has lost its row."""
        begun: dict[Lane, Iterator[Request]] = {
            lane: filter(_is_running, [r for r in self._rows.prefilling.values() if r.lane == lane])
            for lane in LANES
        }
        open_lanes: set[Lane] = {request.lane for request in self._rows.prefilling.values()}
        open_lanes.update(lane for lane in LANES if self._waiting[lane])
        spend = self._turns.begin(open_lanes, tokens, limits, self._people())
        blocked: set[Lane] = set()
        grants: dict[Request, int] = {}
        self._has_displaced = False
        while lane := spend.next_lane():
            request = next(begun[lane], None)
            if request is None and may_admit:
                is_crowded = spend.num_unfinished(lane) >= budget.MAX_UNFINISHED
                most = spend.left(lane) if is_crowded else self._capacity.max_model_len
                request = self._admit_next(lane, limits, now, blocked, most=most, served=grants)
            if request is None:
                spend.close(lane)
                continue
            grants[request] = budget.chunk(request.num_remaining, spend.left(lane))
            spend.charge(lane, grants[request], finishes=grants[request] == request.num_remaining)
        for request, granted in grants.items():
            more = min(request.num_remaining - granted, spend.left(request.lane))
            grants[request] += more
            spend.charge(request.lane, more)
        return [_chunk(request, count) for request, count in grants.items()]

    def _people(self) -> Interactive:
        """What the interactive lane is about to do."""
        begun = sum(r.num_remaining for r in self._rows.prefilling.values() if r.lane != "batch")
        waiting = self._waiting["interactive"].num_tokens
        return Interactive(begun + waiting, is_running=self._rows.by_lane["interactive"] > 0)

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
        request = self._waiting[lane].head
        if request is None or len(request.token_ids) > most:
            return None
        if not self._turns.may_admit(lane, self._waiting):
            return None
        if lane == "batch" and not self._may_take_row(limits):
            return None
        has_row = len(self._rows) < limits.max_batch_size and bool(self._rows.free)
        if not self._take(request, limits, served, has_row=has_row):
            # A lane that holds its share of the blocks and more is not passed over.
            if has_row and not self._holds_blocks_beyond_share(lane, limits):
                blocked.add(lane)
            return None
        self._waiting[lane].remove(request)
        request.is_aged = request.is_aged or self._turns.admitted(lane, blocked)
        if request.scheduled_at is None:
            request.scheduled_at = now
        self._rows.enter(request)
        return request

    def _take(
        self, request: Request, limits: Limits, served: Container[Request], *, has_row: bool
    ) -> bool:
        """Take the blocks of all known tokens; row and blocks from the batch lane if need be."""
        # Each running request may soon need a block more: leave it, or it would preempt at once.
        if has_row and self._blocks.allocate(request, spare=len(self._rows)):
            return True
        if request.lane != "interactive" or not self._rows.by_lane["batch"]:
            return False
        leaving = self._who_leaves(request, limits, served, needs_row=not has_row)
        for other in leaving:
            self._has_displaced = True
            self._displace(other)
        return bool(leaving) and self._blocks.allocate(request, spare=len(self._rows))

    def _who_leaves(
        self, request: Request, limits: Limits, served: Container[Request], *, needs_row: bool
    ) -> list[Request]:
        """Choose the batch requests whose row and blocks are enough; nobody where none are."""
        if needs_row and self._rows_to_take(limits) == 0:
            return []
        free = self._blocks.pool.num_free - self._blocks.most_needed(request)
        held = self._batch_blocks()
        kept = limits.batch_share * self._capacity.num_blocks
        leaving: list[Request] = []
        for other in policy.yielding(self._rows):
            has_room = free >= len(self._rows) - len(leaving)
            if has_room and (leaving or not needs_row):
                break
            is_over_share = held > kept if leaving or not needs_row else True
            if other in served or not is_over_share:
                continue
            leaving.append(other)
            free += self._blocks.held_alone(other)
            held -= len(other.block_ids)
        return leaving if free >= len(self._rows) - len(leaving) else []

    def _may_take_row(self, limits: Limits) -> bool:
        """Tell whether a batch request may have a row, seen from those that would take it back."""
        if self._has_displaced:
            return False
        kept = max(1, policy.rows_kept(limits))
        rows = limits.max_batch_size - len(self._rows)
        return self._rows.by_lane["batch"] < kept or rows > len(self._waiting["interactive"])

    def _rows_to_take(self, limits: Limits) -> int:
        """Rows that interactive requests may take from the batch lane, now that none is free."""
        num_batch = self._rows.by_lane["batch"]
        if not num_batch or len(self._rows) != limits.max_batch_size:
            return 0  # while a lowered batch size drains, nothing that runs is touched
        over = num_batch - policy.rows_kept(limits)
        return min(over, len(policy.yielding(self._rows))) if over > 0 else 0

    def _holds_blocks_beyond_share(self, lane: Lane, limits: Limits) -> bool:
        kept = limits.batch_share * self._capacity.num_blocks
        return lane == "batch" and self._batch_blocks() > kept

    def _batch_blocks(self) -> int:
        return sum(len(request.block_ids) for request in self._rows.of_lane("batch"))


def _is_running(request: Request) -> bool:
    return request.state is State.RUNNING


def _chunk(request: Request, count: int) -> ScheduledChunk:
    samples = count == request.num_remaining
    return ScheduledChunk(request, request.num_computed, count, samples=samples, is_decode=False)
