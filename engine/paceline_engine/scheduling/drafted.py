"""Drafts in a step: slices that carry them, and what is taken in of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.drafting.proposer import Ask
from paceline_engine.drafting.speculation import Speculation
from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.pacing.pacer import Pacer
from paceline_wire import FinishReason

ReasonOf = Callable[[Request, int], FinishReason | None]
"""Why a request ends with its newest token; None where it goes on."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Lets decodes that are alone in a step guess ahead, where that pays."""

    speculation: Speculation
    blocks: BlockLedger
    pacer: Pacer

    def batch(
        self, decodes: Sequence[ScheduledChunk], *, context: int, room: int, allowed_ms: float
    ) -> tuple[Batch, float]:
        """Put drafts behind decodes, as far as there are blocks for them; the time they took, ms.

        `allowed_ms` is what the step may take where guessing itself takes time.
        """
        asks = self.speculation.plan(
            [piece.request for piece in decodes],
            self.pacer,
            context=context,
            room=room,
            allowed_ms=allowed_ms,
        )
        if not asks:
            return Batch(tuple(decodes), num_decodes=len(decodes)), 0.0
        proposal = self.speculation.propose([self._held(ask, len(decodes)) for ask in asks])
        plain, drafted = [], []
        for piece in decodes:
            draft = proposal.drafts.get(piece.request.id, ())
            if draft:
                drafted.append(_drafted(piece, draft))
            else:
                plain.append(piece)
        batch = Batch((*plain, *drafted), num_decodes=len(plain), num_drafted=len(drafted))
        return batch, proposal.ms

    def take_in(
        self, piece: ScheduledChunk, tokens: Sequence[int], reason_of: ReasonOf
    ) -> FinishReason | None:
        """Append what the model chose behind a decode, up to an end; what follows that is void."""
        request = piece.request
        self.speculation.verified(request, drafted=len(piece.draft), accepted=len(tokens) - 1)
        reason = None
        for count, token in enumerate(tokens, 1):
            request.token_ids.append(token)
            request.num_newest = count
            reason = reason_of(request, token)
            if reason is not None:
                break
        # The last token's keys and values are not computed: what stood in its place was a guess.
        request.num_computed = len(request.token_ids) - 1
        self.blocks.cache_blocks(request, piece.start, request.num_computed)
        return reason

    def _held(self, ask: Ask, spare: int) -> Ask:
        """Hold blocks for the guesses, as many as are free.

        Nobody gives way to a guess: the block that each running request may need next stays free.
        """
        if not ask.count:
            return ask
        held = self.blocks.reserve(ask.request, ask.count + 1, spare=spare)
        return ask if held > ask.count else replace(ask, count=held - 1)


def _drafted(piece: ScheduledChunk, draft: tuple[int, ...]) -> ScheduledChunk:
    return ScheduledChunk(
        piece.request, piece.start, 1 + len(draft), samples=True, is_decode=True, draft=draft
    )
