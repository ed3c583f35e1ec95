"""How far a draft model has come with each request, and which blocks hold what it computed.

Its cache lies in blocks of the same numbers as the first model's. Where it stands follows from the
request alone, whatever happened to it since it was last looked at:

    finished or aborted   it is forgotten with the request
    preempted, swapped    it starts again: the request has freed its blocks
    prefix hit            it finds the blocks again that it has filled under the same hash itself;
                          blocks that the first model alone has filled do not count
    draft refused         tokens up to the first wrong one count as computed
"""

from dataclasses import dataclass

from paceline_engine.core.block import BlockHash
from paceline_engine.core.request import Request


@dataclass(slots=True)
class DraftSequence:
    """A request as the draft model sees it: its known tokens, then draft tokens behind them."""

    own: Request
    """Its `num_computed` counts the tokens in the draft model's cache."""
    num_preemptions: int
    num_known: int = 0
    """Tokens of `own` that are not draft tokens."""
    num_filled: int = 0
    """Full blocks whose hashes were noted."""
    is_broken: bool = False
    """The draft model's output for it is not a number: nothing more is drafted for it."""

    @property
    def pending(self) -> int:
        """Tokens to compute up to the first draft token: at least the last one, which gives it."""
        return max(1, self.own.num_remaining)

    @property
    def draft(self) -> tuple[int, ...]:
        """The draft tokens behind the known ones."""
        return tuple(self.own.token_ids[self.num_known :])

    def follow(self, request: Request) -> None:
        """Take the request's tokens; keep what was computed up to the first wrong draft token."""
        own, known = self.own, request.token_ids
        own.block_ids, own.row = request.block_ids, request.row
        right = self.num_known
        for drafted, token in zip(own.token_ids[right:], known[right:], strict=False):
            if drafted != token:
                break
            right += 1
        own.token_ids[right:] = known[right:]
        own.num_computed = min(own.num_computed, right)
        self.num_known = len(known)


class DraftSequences:
    """The draft sequence of each request that was asked about."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._sequences: dict[str, DraftSequence] = {}
        self._filled: dict[int, BlockHash] = {}
        """The full blocks, each with the hash of what the draft model filled it with."""

    def of(self, request: Request) -> DraftSequence:
        """Return the request's sequence, brought up to the request as it is now."""
        found = self._sequences.get(request.id)
        if found is None or found.num_preemptions != request.num_preemptions:
            own = Request(
                id=request.id,
                token_ids=[],
                num_prompt_tokens=request.num_prompt_tokens,
                sampling=request.sampling,
            )
            found = DraftSequence(
                own, request.num_preemptions, is_broken=found is not None and found.is_broken
            )
            self._sequences[request.id] = found
        found.follow(request)
        self._skip_filled(found, request)
        return found

    def computed(self, sequence: DraftSequence, request: Request, start: int, count: int) -> None:
        """Note that `count` tokens from `start` on were computed into the request's blocks."""
        size, own = self._block_size, sequence.own
        for index in range(start // size, -(-(start + count) // size)):
            self._filled.pop(own.block_ids[index], None)
        sequence.num_filled = min(sequence.num_filled, start // size)
        own.num_computed = start + count
        sure = min(own.num_computed, sequence.num_known) // size
        for index in range(sequence.num_filled, min(sure, len(request.block_hashes))):
            self._filled[own.block_ids[index]] = request.block_hashes[index]
            sequence.num_filled = index + 1

    def forget(self, request: Request) -> None:
        """Drop the sequence of a request that is gone; its blocks may be of use to others."""
        self._sequences.pop(request.id, None)

    def _skip_filled(self, sequence: DraftSequence, request: Request) -> None:
        hashes = request.block_hashes
        end = min(len(hashes), len(request.block_ids))
        index = sequence.num_filled
        while index < end and self._filled.get(request.block_ids[index]) == hashes[index]:
            index += 1
        sequence.num_filled = index
        sequence.own.num_computed = max(sequence.own.num_computed, index * self._block_size)
