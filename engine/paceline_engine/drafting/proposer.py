"""Proposer (Protocol): where draft tokens come from, and what it takes to get them. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Protocol, TypeAlias

from paceline_engine.core.request import Request

Draft: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted for one request: take in known tokens, then draft tokens behind them."""

    request: Request
    pending: int
    """Known tokens that the proposer has to take in; where it has more, nothing is drafted."""
    count: int
    """Draft tokens wanted; with 0 it only catches up."""
    chance: float
    """The chance that each draft token is accepted, given those before it."""
    forced: tuple[bool, ...] = ()
    """Of each draft token, whether a grammar forces it: then its chance is 1. Empty: of none."""

    @property
    def chances(self) -> list[float]:
        """The chance of each draft token that it and all before it are accepted."""
        certain = self.forced or (False,) * self.count
        own = (1.0 if is_forced else self.chance for is_forced in certain[: self.count])
        return list(accumulate(own, mul))

    @property
    def expected(self) -> float:
        """Draft tokens that are accepted on average."""
        return sum(self.chances)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafts by request, and the time that proposing them took."""

    drafts: Mapping[str, Draft]
    """At most as long as asked for, and never empty: a request without a draft is missing."""
    ms: float = 0.0
    forced: Mapping[str, tuple[bool, ...]] = field(default_factory=dict)
    """Of each token of a draft, whether a grammar forces it; drafts without any may be missing."""


class Proposer(Protocol):
    """Drafts what follows; it may be wrong, slow or silent, and nobody's output changes."""

    @property
    def first_chance(self) -> float:
        """The chance that is assumed of a draft token before any was tried, in [0, 1]."""
        ...

    @property
    def takes_time(self) -> bool:
        """Whether drafting delays the step; then it does so only where no prompt waits for it."""
        ...

    def reach(self, request: Request, most: int) -> int:
        """Return how many tokens, at most `most`, it can draft for a request; 0 for none."""
        ...

    def pending(self, request: Request) -> int:
        """Return the known tokens of the request that it has to take in before it can draft."""
        ...

    def ms(self, asks: Sequence[Ask]) -> float:
        """Predict the time that `propose` takes; 0 where it takes none, or that is unknown."""
        ...

    def ms_of_one(self, rows: int, context: int) -> float:
        """Predict it for a draft token each of `rows` requests, with `context` tokens in all."""
        ...

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """Draft as asked. The blocks of every token but the last one are held already."""
        ...

    def forget(self, request: Request) -> None:
        """Drop what is kept of a request that is gone."""
        ...
