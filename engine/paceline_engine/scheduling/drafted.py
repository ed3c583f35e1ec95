"""Drafts in a step: slices that carry them, and what is taken in of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_engine.drafting.speculation import Speculation
from paceline_engine.kv_cache.ledger import BlockLedger
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.request import Request
from paceline_engine.scheduling.batch import Batch, Slice
from paceline_engine.wire import FinishReason

ReasonOf = Callable[[Request, int], FinishReason | None]
"""Why a request ends with its newest token; None where it goes on."""


@dataclass(frozen=True, slots=True)
class Drafts:
    """Lets decodes that are alone in a step guess ahead, where that pays."""

    speculation: Speculation
    blocks: BlockLedger
    pacer: Pacer

    def batch(self, decodes: Sequence[Slice], *, context: int, room: int) -> Batch:
        """Put drafts behind decodes, as far as there are blocks for them.

        Nobody gives way to a guess: the block that each running request may need next stays free.
        """
        requests = [piece.request for piece in decodes]
        drafts = self.speculation.drafts(requests, self.pacer, context=context, room=room)
        plain, drafted = [], []
        for piece in decodes:
            draft = drafts.get(piece.request.id, ())
            if draft:
                spare = len(decodes)
                held = self.blocks.stretch(piece.request, len(draft) + 1, spare=spare)
                draft = draft[: held - 1]
            if draft:
                drafted.append(_drafted(piece, draft))
            else:
                plain.append(piece)
        return Batch((*plain, *drafted), num_decodes=len(plain), num_drafted=len(drafted))

    def take_in(
        self, piece: Slice, tokens: Sequence[int], reason_of: ReasonOf
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
        self.blocks.seal(request, piece.start)
        return reason


def _drafted(piece: Slice, draft: tuple[int, ...]) -> Slice:
    return Slice(
        piece.request, piece.start, 1 + len(draft), samples=True, is_decode=True, draft=draft
    )
