"""Prompt lookup: draft what followed the newest n-gram when it last occurred (Saxena, 2023)."""

from collections.abc import Sequence

from paceline_engine.core.request import Request
from paceline_engine.drafting.proposer import Ask, Proposal

_LENGTH = 3
"""Tokens that must agree: two agree by chance too often, four find less."""
_WINDOW = 4096
"""Newest tokens that are looked through: a prompt of 100k must not stall its first step."""


class NgramIndex:
    """One request's tokens, by every three that follow one another."""

    __slots__ = ("_ends", "_seen")

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        """The index of the token that last followed each three tokens."""
        self._seen = 0

    def propose(self, token_ids: list[int], count: int) -> tuple[int, ...]:
        """Draft up to `count` tokens that follow; none where the newest three are new.

        A draft that reaches the end of the sequence goes on with itself, so a pattern that
        repeats is followed for as long as wanted.
        """
        self._index(token_ids)
        start = self._ends.get(tuple(token_ids[-_LENGTH:]))
        if start is None:
            return ()
        known = token_ids[start : start + count]
        period = len(token_ids) - start
        return tuple(known[index % period] for index in range(count))

    def _index(self, token_ids: list[int]) -> None:
        """Take in all but the newest three, which nothing follows yet."""
        end = len(token_ids)
        first = max(self._seen, end - _WINDOW, _LENGTH)
        for index in range(first, end):
            self._ends[tuple(token_ids[index - _LENGTH : index])] = index
        self._seen = max(end, _LENGTH)


class NgramProposer:
    """Implements the `Proposer` port: drafts from each request's own tokens, in no time."""

    first_chance = 0.5
    takes_time = False

    def __init__(self) -> None:
        self._indexes: dict[str, NgramIndex] = {}

    def reach(self, request: Request, most: int) -> int:
        """See `Proposer`."""
        index = self._indexes.setdefault(request.id, NgramIndex())
        return len(index.propose(request.token_ids, most))

    def pending(self, request: Request) -> int:  # noqa: ARG002 - the port's shape
        """Return 0: tokens are indexed when a draft is asked for."""
        return 0

    def ms(self, asks: Sequence[Ask]) -> float:  # noqa: ARG002 - the port's shape
        """Return 0: it takes no time to speak of."""
        return 0.0

    def ms_of_one(self, rows: int, context: int) -> float:  # noqa: ARG002 - the port's shape
        """Return 0: it takes no time to speak of."""
        return 0.0

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """See `Proposer`."""
        found = {
            ask.request.id: self._indexes[ask.request.id].propose(ask.request.token_ids, ask.count)
            for ask in asks
        }
        return Proposal({id_: draft for id_, draft in found.items() if draft})

    def forget(self, request: Request) -> None:
        """See `Proposer`."""
        self._indexes.pop(request.id, None)
