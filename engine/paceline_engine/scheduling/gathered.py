"""Static and dynamic batching: a batch is gathered, padded to its longest, and runs until all end.

Kept for comparison with continuous batching, on the same runner. Prompts are computed first, all of
them; then every request gets a token a step. Rows and prompts are padded as such engines do: a
prompt to the length of the longest, a request that has ended to the end of the batch. The padding
is really computed, from tokens whose keys and values are known, and its result thrown away.

Static takes whoever waits when the batch before has ended. Dynamic takes prompts of about equal
length (the same power of two), once a whole batch waits or the first has waited long enough.
"""

from dataclasses import replace
from itertools import chain

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.scheduling.plan import Plan
from paceline_engine.scheduling.scheduler import Scheduler
from paceline_engine.scheduling.waiting import LANES
from paceline_wire.limits import Limits


class StaticScheduler(Scheduler):
    """A batch of up to N requests runs until all of them have ended."""

    admits_any_time = False
    _num_gathered = 0
    """Rows of the present batch, those that have ended included."""

    def schedule(self, limits: Limits, now: float) -> Plan:
        """Choose the next step; without slices while a batch is being gathered."""
        if not self.rows:
            self._begin_batch(limits, now)
        preempted_before = self.num_preemptions
        # Nobody decodes before every prompt of the batch is done.
        decodes = [] if self.prefilling else self._decodes(limits)
        prefills = self._prompts(limits) if self.prefilling else []
        preemptions = self.num_preemptions - preempted_before
        num_decodes = len(decodes)
        context = sum(piece.start + 1 for piece in decodes)
        batch = Batch((*decodes, *prefills), num_decodes=num_decodes)
        copies = self.blocks.swap.take_copies()
        return Plan(batch, limits.token_budget, preemptions, context, copies)

    def _gather(self, limits: Limits, now: float) -> list[Request]:  # noqa: ARG002 - for who waits
        """Choose the next batch, the interactive lane first."""
        waiting = chain.from_iterable(self.waiting[lane] for lane in LANES)
        return [request for request, _ in zip(waiting, range(limits.max_batch_size), strict=False)]

    def _begin_batch(self, limits: Limits, now: float) -> None:
        taken = []
        for request in self._gather(limits, now):
            if not self.rows.free or not self.blocks.allocate(request, spare=len(self.rows)):
                break
            self.waiting[request.lane].remove(request)
            request.scheduled_at = now if request.scheduled_at is None else request.scheduled_at
            self.rows.enter(request)
            taken.append(request)
        self._num_gathered = len(taken)
        longest = max((len(request.token_ids) for request in taken), default=0)
        self._owed = {request.id: longest - len(request.token_ids) for request in taken}

    def _prompts(self, limits: Limits) -> list[ScheduledChunk]:
        left = limits.token_budget
        slices: list[ScheduledChunk] = []
        for request in list(self.prefilling.values()):
            count = min(request.num_remaining, left)
            if count:
                start, is_last = request.num_computed, count == request.num_remaining
                slices.append(
                    ScheduledChunk(request, start, count, samples=is_last, is_decode=False)
                )
                left -= count
            # Padded in the step that computes its last token, as far as the step has room.
            if count == request.num_remaining:
                padding = _padding(request, min(self._owed.pop(request.id, 0), left))
                slices += padding
                left -= sum(piece.count for piece in padding)
        return slices

    def _decodes(self, limits: Limits) -> list[ScheduledChunk]:
        running = [
            ScheduledChunk(request, request.num_computed, 1, samples=True, is_decode=True)
            for request in self._extend_decodes()
        ]
        if not running:
            return []
        room = max(0, limits.token_budget - len(running))
        num_ended = max(0, self._num_gathered - len(running))
        padding = replace(running[0], samples=False, is_padding=True)
        return [*running, *[padding] * min(num_ended, room)]


class DynamicScheduler(StaticScheduler):
    """A batch of prompts of about equal length, once it is full or the first has waited."""

    may_wait = True
    batch_timeout_s = 0.1
    """The longest that the first request waits for others."""

    def _gather(self, limits: Limits, now: float) -> list[Request]:
        waiting = list(chain.from_iterable(self.waiting[lane] for lane in LANES))
        if not waiting:
            return []
        oldest_at = min(request.arrived_at for request in waiting)
        if len(waiting) < limits.max_batch_size and now - oldest_at < self.batch_timeout_s:
            return []
        bucket = _bucket(waiting[0])
        alike = [request for request in waiting if _bucket(request) == bucket]
        return alike[: limits.max_batch_size]


def _bucket(request: Request) -> int:
    """Lengths up to the same power of two are about equal."""
    return (len(request.token_ids) - 1).bit_length()


def _padding(request: Request, count: int) -> list[ScheduledChunk]:
    """Compute `count` tokens more than the prompt has: its own, over again."""
    slices = []
    length = len(request.token_ids)
    while count > 0:
        part = min(count, length)
        slices.append(
            ScheduledChunk(request, 0, part, samples=False, is_decode=False, is_padding=True)
        )
        count -= part
    return slices
