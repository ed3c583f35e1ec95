"""Proposer (Protocol): where guesses come from, and what it takes to get them. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from paceline_engine.core.request import Request

Draft: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted for one request: take in known tokens, then guess behind them."""

    request: Request
    pending: int
    """Known tokens that the proposer has to take in; where it has more, nothing is guessed."""
    count: int
    """Tokens to guess; with 0 it only catches up."""
    chance: float
    """Of each guess to hold, given those before it."""

    @property
    def expected(self) -> float:
        """Guesses that hold on average."""
        return sum(self.chance**place for place in range(1, self.count + 1))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts by request, and the time that they took."""

    drafts: Mapping[str, Draft]
    """At most as long as asked for, and never empty: who has no guess is missing."""
    ms: float = 0.0


class Proposer(Protocol):
    """Guesses what follows; it may be wrong, slow or silent, and nobody's output changes."""

    @property
    def first_chance(self) -> float:
        """What is believed of a guess before any was tried, in [0, 1]."""
        ...

    def reach(self, request: Request, most: int) -> int:
        """How many tokens, at most `most`, it can guess of a request; 0 where it has no guess."""
        ...

    def pending(self, request: Request) -> int:
        """Known tokens of the request that it has to take in before it can guess."""
        ...

    def ms(self, asks: Sequence[Ask]) -> float:
        """Time that `propose` is predicted to take; 0 where it costs nothing, or no one knows."""
        ...

    def ms_of_one(self, rows: int, context: int) -> float:
        """The same for one guess for each of `rows` requests that have `context` tokens in all."""
        ...

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """Do as asked. The blocks of every token but the last one guessed are held already."""
        ...

    def forget(self, request: Request) -> None:
        """The request is gone."""
        ...
