"""Which requests run, and how many tokens of each the next step computes.

Decodes come first, each with one token; what is left of the step's tokens goes to prompts, those
begun before those that wait. Decodes of the batch lane pause while people's prompts need their
tokens, except in the lane's share of the steps. A request gets the blocks of all its known tokens
when it is admitted, so prefill never runs out of blocks half way. A decode that needs one more
block when none is free preempts, and an interactive request that finds no row or no blocks
displaces batch requests. Decodes get draft tokens before prompts get theirs, where that pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from paceline_engine.core.batch import Batch, Next, ScheduledChunk
from paceline_engine.core.request import Request, State
from paceline_engine.drafting.proposer import Ask
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.kv_cache.swap import BlockCopy
from paceline_engine.pacing.lane_pace import limits_for_decodes
from paceline_engine.pacing.pacer import Pacer, StepShape
from paceline_engine.scheduling.fair_share import MIN_SHARE, FairShare
from paceline_engine.scheduling.prefill import Prefills
from paceline_engine.scheduling.request_table import RequestTable
from paceline_engine.scheduling.watchdog import Queue
from paceline_wire import FinishReason
from paceline_wire.limits import Limits

_LEAST_GAIN = 1.25
"""A pause gives people's prompts that many times the tokens, or it is not worth its price."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next step does."""

    batch: Batch
    """Empty if there is nothing to run."""
    token_total: int
    """Tokens that the step might have held."""
    preemptions: int
    """Requests that lost their blocks to decodes for which none was free."""
    context: int
    """Sum of the context lengths of the decodes, tokens."""
    copies: tuple[BlockCopy, ...] = ()
    """To and from host memory, before the step runs."""
    draft_ms: float = 0.0
    """Time that making the draft tokens has taken already."""
    is_gathering: bool = False
    """Nothing runs because the requests that wait are still too few for a batch."""


class Scheduler(Protocol):
    """What the step loop needs: schedule a step, launch it, then settle or withdraw it."""

    @property
    def requests(self) -> RequestTable:
        """The requests, which the scheduler alone moves: read them, and tell what was launched."""
        ...

    def must_settle(self, limits: Limits) -> bool:
        """Tell whether the next step can be chosen only when the one in flight is settled."""
        ...

    def schedule(self, limits: Limits, now: float) -> Plan:
        """Choose the next step. With a step in flight the caller has asked `must_settle` first."""
        ...

    def settle(self, batch: Batch, tokens: Sequence[Next], now: float) -> list[Request]:
        """Take in the step launched first; return who got a token, some of them finished by it."""
        ...

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is, and free what it holds."""
        ...

    def queue_after(self, batch: Batch, limits: Limits) -> Queue | None:
        """Describe whom a step left waiting for admission; None if nobody waits for that."""
        ...


class ContinuousScheduler:
    """Chooses anew in every step: requests join and leave while others run."""

    def __init__(
        self, requests: RequestTable, pacer: Pacer, speculation: Speculation | None = None
    ) -> None:
        self.requests = requests
        self.speculation = speculation
        self._guesses = speculation is not None and speculation.proposer is not None
        self._pacer = pacer
        self._fair_share = FairShare()
        self._prefills = Prefills(requests, self._fair_share)
        self._num_pauses = 0
        """How many of the newest steps in a row leave out the decodes of the batch lane."""

    def must_settle(self, limits: Limits) -> bool:
        """Tell whether the next step can be chosen only when the one in flight is settled.

        It may need the tokens on the host (draft tokens, grammars), or may move blocks: those of a
        request in flight are written to.
        """
        return (
            self._guesses
            or self.requests.blocks.swap.is_in_use
            or any(r.constraint is not None for r in self.requests.decoding.values())
            or self._may_displace(limits)
            or self._may_preempt()
        )

    def schedule(self, limits: Limits, now: float) -> Plan:
        """Choose the next step; it is empty only if every request left is in flight."""
        preempted_before = self.requests.num_preemptions
        decodes = self.requests.decode_chunks()
        preemptions = self.requests.num_preemptions - preempted_before
        # A request that was just preempted would be admitted at once and preempt again.
        may_admit = preemptions == 0

        paced = limits_for_decodes(limits, self.requests.decoding.values())
        shape = self._shape(len(decodes), _context(decodes), paced, now)
        total = self._step_tokens(shape, paced, limits)
        pause = self._pause(decodes, total, limits, now, may_admit=may_admit)
        if pause is not None:
            decodes, shape, paced, total = pause.decodes, pause.shape, pause.paced, pause.total
        context = shape.context
        is_paused = pause is not None
        self._num_pauses = self._num_pauses + 1 if is_paused else 0
        drafts = _Drafts(decodes)
        may_draft = self._guesses or any(each.request.guide is not None for each in decodes)
        if decodes and may_draft and self.speculation is not None:
            drafts = self._drafts(self.speculation, decodes, shape, total, paced)
        prefills: list[ScheduledChunk] = []
        if self.requests.has_prompts:
            left = total - drafts.num_tokens
            prefills = self._prefills.share(
                left, limits, now, may_admit=may_admit, is_batch_paused=is_paused
            )
        else:
            self._fair_share.active = set()
        if self.requests.num_preemptions - preempted_before > preemptions:
            drafts = drafts.of_running()
            context = _context(drafts.chunks)

        batch = Batch(
            (*drafts.plain, *drafts.drafted, *prefills),
            num_decodes=len(drafts.plain),
            num_drafted=len(drafts.drafted),
            is_batch_paused=is_paused,
        )
        swap = self.requests.blocks.swap
        copies = swap.take_copies() if swap.copies else ()
        return Plan(batch, total, preemptions, context, copies, drafts.ms)

    def settle(self, batch: Batch, tokens: Sequence[Next], now: float) -> list[Request]:
        """Take in the step launched first; return who got a token, some of them finished by it."""
        speculation = self.speculation
        if speculation is None:
            return self.requests.settle(batch, tokens, now)
        for chunk, token in zip(batch.chunks, tokens, strict=True):
            if isinstance(token, tuple) and chunk.request.state is State.RUNNING:
                speculation.verified(
                    chunk.request, drafted=len(chunk.draft), accepted=len(token) - 1
                )
        sampled = self.requests.settle(batch, tokens, now)
        for request in sampled:
            if request.state is State.FINISHED:
                speculation.forget(request)
        return sampled

    def finish(self, request: Request, reason: FinishReason) -> None:
        """End a request, wherever it is, and free what it holds."""
        self.requests.finish(request, reason)
        if self.speculation is not None:
            self.speculation.forget(request)

    def queue_after(self, batch: Batch, limits: Limits) -> Queue | None:
        """Describe whom a step left waiting for admission; None if nobody waits for that."""
        requests = self.requests
        if not requests.num_waiting:
            return None
        heads = [head for lane in requests.waiting.values() if (head := lane.head) is not None]
        return Queue(
            waiting=requests.num_waiting,
            running=requests.num_running,
            max_batch_size=limits.max_batch_size,
            free_blocks=requests.blocks.pool.num_free,
            needed_blocks=max(map(requests.blocks.most_needed, heads), default=0),
            has_prompts=len(batch.chunks) > batch.num_decodes + batch.num_drafted,
        )

    def _pause(
        self,
        decodes: Sequence[ScheduledChunk],
        total: int,
        limits: Limits,
        now: float,
        *,
        may_admit: bool,
    ) -> "_Pause | None":
        """Plan the step without the batch lane; None unless people's prompts gain enough by it."""
        if not (limits.may_pause_batch and self.requests.has_prompts):
            return None
        if self._num_pauses * max(limits.batch_share, MIN_SHARE) >= limits.interactive_share:
            return None
        others = [chunk for chunk in decodes if chunk.request.lane == "interactive"]
        room = total - len(decodes)
        if len(others) == len(decodes):
            return None
        if self._prefills.wanted_by_people(limits, may_admit=may_admit) <= room:
            return None
        # Whoever pauses waits for the step: where nobody else does, it keeps that lane's target.
        waiting = others or decodes[:1]
        paced = limits_for_decodes(limits, (chunk.request for chunk in waiting))
        shape = self._shape(len(waiting), _context(others), paced, now)
        total = self._step_tokens(shape, paced, limits) - len(waiting) + len(others)
        shape = replace(shape, decode=len(others))
        has_gained = total - len(others) >= _LEAST_GAIN * max(1, room)
        return _Pause(others, shape, paced, total) if has_gained else None

    def _step_tokens(self, shape: StepShape, paced: Limits, limits: Limits) -> int:
        """Bound what the pacer allows: every decode runs, and prefill is never starved.

        The token budget may be below the decodes only while a lowered batch size drains.
        """
        allowed = self._pacer.token_total(shape, paced)
        floor = shape.decode + (shape.prefill_wanted > 0)
        return max(min(max(allowed, floor), limits.token_budget), shape.decode)

    def _shape(self, decode: int, context: int, limits: Limits, now: float) -> StepShape:
        if not self.requests.has_prompts:
            slack_ms = self.requests.pace.slack_ms(limits, now)
            return StepShape(decode, context, 0, slack_ms=slack_ms)
        # With many prompts at hand every step is full, and a long one only leaves the next less:
        # then steps keep their plain target.
        slack_ms = None if self._prefills.is_crowded else self.requests.pace.slack_ms(limits, now)
        return StepShape(
            decode=decode,
            context=context,
            prefill_wanted=self._prefills.wanted(limits),
            prompts=self._prefills.ahead(limits),
            slack_ms=slack_ms,
        )

    def _drafts(
        self,
        speculation: Speculation,
        decodes: Sequence[ScheduledChunk],
        shape: StepShape,
        total: int,
        limits: Limits,
    ) -> "_Drafts":
        """Put draft tokens behind decodes where that pays.

        Prompts keep half of the step's tokens, and all that they want where there is more.
        """
        left = total - len(decodes)
        asks = speculation.plan(
            [chunk.request for chunk in decodes],
            self._pacer,
            context=shape.context,
            room=left - min(shape.prefill_wanted, (left + 1) // 2),
            prompts=min(shape.prefill_wanted, left),
            allowed_ms=self._pacer.allowed_ms(shape, limits),
        )
        if not asks:
            return _Drafts(decodes)
        proposal = speculation.propose([self._with_blocks(ask, spare=len(decodes)) for ask in asks])
        plain, drafted = [], []
        for chunk in decodes:
            draft = proposal.drafts.get(chunk.request.id, ())
            if draft:
                drafted.append(replace(chunk, count=1 + len(draft), draft=draft))
            else:
                plain.append(chunk)
        return _Drafts(plain, drafted, proposal.ms)

    def _with_blocks(self, ask: Ask, *, spare: int) -> Ask:
        """Reserve blocks for the draft tokens, and ask for no more than are free.

        Nobody gives way to a draft: the block that each running request may need next stays free.
        """
        if not ask.count:
            return ask
        held = self.requests.blocks.reserve(ask.request, ask.count + 1, spare=spare)
        return ask if held > ask.count else replace(ask, count=held - 1)

    def _may_displace(self, limits: Limits) -> bool:
        """Tell whether interactive requests may take a row or blocks from the batch lane."""
        requests, waiting = self.requests, self.requests.waiting["interactive"]
        arriving = len(waiting)
        if not arriving or not requests.num_running_of["batch"]:
            return False
        rows = requests.num_running + arriving
        # With their last blocks partly filled, and the one that each running request may need next.
        most = requests.blocks.most_for(waiting.num_tokens) + arriving + rows
        return rows > limits.max_batch_size or requests.blocks.pool.num_free < most

    def _may_preempt(self) -> bool:
        """Tell whether some decode may find no block for its next token."""
        blocks, decoding = self.requests.blocks, self.requests.decoding
        if blocks.pool.num_free >= len(decoding):  # enough even if all need one: skip the count
            return False
        return blocks.pool.num_free < sum(map(blocks.is_full, decoding.values()))


@dataclass(frozen=True, slots=True)
class _Pause:
    """A step that the decodes of the batch lane leave out."""

    decodes: list[ScheduledChunk]
    """Those of the interactive lane."""
    shape: StepShape
    paced: Limits
    total: int
    """Tokens that the step may hold."""


@dataclass(frozen=True, slots=True)
class _Drafts:
    """The decodes of a step, those with a draft apart."""

    plain: Sequence[ScheduledChunk]
    drafted: Sequence[ScheduledChunk] = ()
    ms: float = 0.0
    """Time that proposing the drafts took, ms."""

    @property
    def chunks(self) -> tuple[ScheduledChunk, ...]:
        return (*self.plain, *self.drafted)

    @property
    def num_tokens(self) -> int:
        return len(self.plain) + sum(chunk.count for chunk in self.drafted)

    def of_running(self) -> "_Drafts":
        """Return the drafts without the requests that have lost their rows."""
        return _Drafts(
            [chunk for chunk in self.plain if chunk.request.state is State.RUNNING],
            [chunk for chunk in self.drafted if chunk.request.state is State.RUNNING],
            self.ms,
        )


def _context(decodes: Sequence[ScheduledChunk]) -> int:
    return sum(chunk.start for chunk in decodes) + len(decodes)
