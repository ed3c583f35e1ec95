"""How far a draft model has come with each request, and which blocks hold what it computed.

Its cache lies in blocks of the same numbers as the first model's. Where it stands follows from the
request alone, whatever happened to it since it was last looked at:

    finished or aborted   forgotten with the request
    preempted, swapped    it starts again: the request has given its blocks up
    prefix hit            blocks that it has filled under the same name are found again, the first
                          model's are not its own
    guesses refused       tokens up to the first wrong one count as computed
"""

from dataclasses import dataclass

from paceline_engine.core.block import BlockHash
from paceline_engine.core.request import Request


@dataclass(slots=True)
class DraftSequence:
    """A request as the draft model sees it: what is known of it, then guesses behind that."""

    own: Request
    """Its `num_computed` counts the tokens in the draft model's cache."""
    num_preemptions: int
    num_known: int = 0
    """Tokens of `own` that were no guesses."""
    num_sealed: int = 0
    """Full blocks whose names were noted."""
    is_broken: bool = False
    """The draft model's output for it is no number: it is left alone."""

    @property
    def pending(self) -> int:
        """Tokens to compute up to the first guess: at least the last one, which gives it."""
        return max(1, self.own.num_remaining)

    @property
    def guesses(self) -> tuple[int, ...]:
        """What was guessed behind what is known."""
        return tuple(self.own.token_ids[self.num_known :])

    def follow(self, request: Request) -> None:
        """Take the request's tokens; keep what was computed up to the first wrong guess."""
        own, known = self.own, request.token_ids
        own.block_ids, own.row = request.block_ids, request.row
        right = self.num_known
        for guess, token in zip(own.token_ids[right:], known[right:], strict=False):
            if guess != token:
                break
            right += 1
        own.token_ids[right:] = known[right:]
        own.num_computed = min(own.num_computed, right)
        self.num_known = len(known)


class Followers:
    """One follower for each request that was asked about."""

    def __init__(self, block_size: int) -> None:
        """Know no request yet, and nothing of any block."""
        self._block_size = block_size
        self._followers: dict[str, DraftSequence] = {}
        self._filled: dict[int, BlockHash] = {}
        """Blocks that are full, by the name of what the draft model filled them with."""

    def of(self, request: Request) -> DraftSequence:
        """Look at the request as it is now."""
        found = self._followers.get(request.id)
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
            self._followers[request.id] = found
        found.follow(request)
        self._skip_filled(found, request)
        return found

    def computed(self, follower: DraftSequence, request: Request, start: int, count: int) -> None:
        """Note that `count` tokens from `start` on were computed into the request's blocks."""
        size, own = self._block_size, follower.own
        for index in range(start // size, -(-(start + count) // size)):
            self._filled.pop(own.block_ids[index], None)
        follower.num_sealed = min(follower.num_sealed, start // size)
        own.num_computed = start + count
        sure = min(own.num_computed, follower.num_known) // size
        for index in range(follower.num_sealed, min(sure, len(request.block_hashes))):
            self._filled[own.block_ids[index]] = request.block_hashes[index]
            follower.num_sealed = index + 1

    def forget(self, request: Request) -> None:
        """The request is gone; what its blocks hold may be of use to others."""
        self._followers.pop(request.id, None)

    def _skip_filled(self, follower: DraftSequence, request: Request) -> None:
        names = request.block_hashes
        end = min(len(names), len(request.block_ids))
        index = follower.num_sealed
        while index < end and self._filled.get(request.block_ids[index]) == names[index]:
            index += 1
        follower.num_sealed = index
        follower.own.num_computed = max(follower.own.num_computed, index * self._block_size)
