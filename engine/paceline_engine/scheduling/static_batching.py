"""Static and dynamic batching: a batch is gathered, padded to its longest, and runs until all end.

Kept for comparison with continuous batching, on the same runner. All prompts of the batch are
computed first; then every request gets a token a step. Rows and prompts are padded as in engines
that batch so: a prompt to the length of the longest, a request that has ended to the end of the
batch. The padding is really computed, from tokens whose keys and values are known, and its result
thrown away.

Static batching takes whoever waits when the batch before has ended. Dynamic batching takes prompts
of about equal length (the same power of two, unless it is told to mix them), once a whole batch
waits or the first has waited long enough. With a wait without end and lengths mixed, it is the
static batching of textbooks, which waits for exactly N.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from paceline_engine.core.batch import Batch, Next, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.scheduling.request_table import LANES, RequestTable
from paceline_engine.scheduling.scheduler import Plan
from paceline_wire import FinishReason
from paceline_wire.limits import Limits


@dataclass(frozen=True, slots=True)
class Gathering:
    """How a dynamic batch is gathered."""

    max_wait_s: float = 0.1
    """The longest that the first request waits for others."""
    has_buckets: bool = True
    """Whether a batch holds prompts of about equal length."""


class StaticScheduler:
    """Lets a batch of up to `max_batch_size` requests run until all of them have ended."""

    def __init__(self, requests: RequestTable) -> None:
        self.requests = requests
        self._num_gathered = 0
        """Rows of the present batch, those that have ended included."""
        self._owed: dict[str, int] = {}
        """Padding that each prompt still needs to be as long as the longest, by request."""

    def must_settle(self, limits: Limits) -> bool:  # noqa: ARG002 - the port's shape
        """Return True: which requests have ended decides what is padded, so steps never overlap."""
        return True

    def schedule(self, limits: Limits, now: float) -> Plan:
        """Choose the next step; it is empty while a batch is being gathered."""
        requests, is_gathering = self.requests, False
        if not requests.num_running:
            chosen = self._gather(limits, now)
            is_gathering = not chosen and requests.num_waiting > 0
            self._begin_batch(chosen, now)
        preempted_before = requests.num_preemptions
        # Nobody decodes before every prompt of the batch is done.
        decodes = [] if requests.prefilling else self._decodes(limits)
        prefills = self._prompts(limits) if requests.prefilling else []
        return Plan(
            Batch((*decodes, *prefills), num_decodes=len(decodes)),
            token_total=limits.token_budget,
            preemptions=requests.num_preemptions - preempted_before,
            context=sum(chunk.start + 1 for chunk in decodes),
            copies=requests.blocks.swap.take_copies(),
            is_gathering=is_gathering,
        )

    def settle(self, batch: Batch, tokens: Sequence[Next], now: float) -> list[Request]:
        """Take in the step launched first; return who got a token, some of them finished by it."""
        return self.requests.settle(batch, tokens, now)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is, and free what it holds."""
        self.requests.finish(request, reason)

    def queue_after(self, batch: Batch, limits: Limits) -> None:
        """Return None: requests wait for the batch to end, not for admission."""

    def _gather(self, limits: Limits, now: float) -> list[Request]:  # noqa: ARG002 - for who waits
        """Choose the next batch, the interactive lane first."""
        return self._waiting()[: limits.max_batch_size]

    def _waiting(self) -> list[Request]:
        return list(chain.from_iterable(self.requests.waiting[lane] for lane in LANES))

    def _begin_batch(self, chosen: Sequence[Request], now: float) -> None:
        """Admit the chosen requests, as far as there are rows and blocks for them."""
        requests, admitted = self.requests, []
        for request in chosen:
            if not requests.has_free_row or not requests.blocks.allocate(
                request, spare=requests.num_running
            ):
                break
            requests.admit(request, now)
            admitted.append(request)
        self._num_gathered = len(admitted)
        longest = max((len(request.token_ids) for request in admitted), default=0)
        self._owed = {request.id: longest - len(request.token_ids) for request in admitted}

    def _prompts(self, limits: Limits) -> list[ScheduledChunk]:
        left = limits.token_budget
        chunks: list[ScheduledChunk] = []
        for request in list(self.requests.prefilling.values()):
            count = min(request.num_remaining, left)
            if count:
                start, is_last = request.num_computed, count == request.num_remaining
                chunks.append(
                    ScheduledChunk(request, start, count, samples=is_last, is_decode=False)
                )
                left -= count
            # It is padded in the step that computes its last token, as far as the step has room.
            if count == request.num_remaining:
                padding = _padding(request, min(self._owed.pop(request.id, 0), left))
                chunks += padding
                left -= sum(chunk.count for chunk in padding)
        return chunks

    def _decodes(self, limits: Limits) -> list[ScheduledChunk]:
        running = self.requests.decode_chunks()
        if not running:
            return []
        room = max(0, limits.token_budget - len(running))
        num_ended = max(0, self._num_gathered - len(running))
        padding = replace(running[0], samples=False, is_padding=True)
        return [*running, *[padding] * min(num_ended, room)]


class DynamicScheduler(StaticScheduler):
    """Takes prompts of about equal length, once a batch is full or the first has waited."""

    def __init__(self, requests: RequestTable, gathering: Gathering | None = None) -> None:
        super().__init__(requests)
        self._gathering = gathering or Gathering()

    def _gather(self, limits: Limits, now: float) -> list[Request]:
        waiting = self._waiting()
        if not waiting:
            return []
        oldest_at = min(request.arrived_at for request in waiting)
        if len(waiting) < limits.max_batch_size and now - oldest_at < self._gathering.max_wait_s:
            return []
        if not self._gathering.has_buckets:
            return waiting[: limits.max_batch_size]
        bucket = _bucket(waiting[0])
        alike = [request for request in waiting if _bucket(request) == bucket]
        return alike[: limits.max_batch_size]


def _bucket(request: Request) -> int:
    """Return the bucket of a request: prompts of about equal length, by powers of two."""
    return (len(request.token_ids) - 1).bit_length()


def _padding(request: Request, count: int) -> list[ScheduledChunk]:
    """Compute `count` tokens more than the prompt has, by computing its own over again."""
    chunks = []
    length = len(request.token_ids)
    while count > 0:
        part = min(count, length)
        chunks.append(
            ScheduledChunk(request, 0, part, samples=False, is_decode=False, is_padding=True)
        )
        count -= part
    return chunks
