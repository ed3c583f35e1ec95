"""The traffic: sessions of several turns, each a longer prompt than the one before.

Requests come independently of each other (Poisson). Each is the next turn of one of many sessions:
some are far more active than others, and none asks again within half a minute. A turn's prompt is
the application's own beginning, which many sessions share, all that was said before, and something
new. A session ends by chance after a turn, and another takes its place.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tune_report.mixes import Lengths

_APPLICATIONS: Final = 500
_POPULARITY: Final = 0.6
"""The k-th application's share goes as k to the power of minus this."""
_BEGINNING: Final = (500, 1500)
"""Tokens that all sessions of an application share."""
_FIRST: Final = Lengths(800, 500, 4000, 16)
_LATER: Final = Lengths(120, 80, 1000, 4)
_ANSWER: Final = Lengths(211, 129, 500, 2)
_GAP_S: Final = 60.0
"""Mean time between two turns of a session of mean activity."""
_LEAST_GAP_S: Final = 30.0
_ACTIVITY_SIGMA: Final = 1.0
"""Of the logarithm of a session's activity: the busiest sixth asks 2.7 times the median or more."""
_TURNS: Final = 8.0
"""Mean turns of a session."""
_MOST_TOKENS: Final = 12_000
"""A session whose next prompt could be longer ends."""
_AT_ONCE: Final = 4096
"""Numbers that are drawn at a time, as one at a time would take most of a run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    at_s: float
    session: int
    application: int
    shared: int
    """Tokens of the prompt that all sessions of the application begin with."""
    prompt: int
    output: int

    @property
    def own(self) -> int:
        """Tokens that are this session's alone once it has its answer."""
        return self.prompt + self.output - self.shared


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of one run."""

    before: tuple[Turn, ...]
    """Those of before the first second, which only fill caches."""
    turns: tuple[Turn, ...]


@dataclass(slots=True)
class _Session:
    number: int
    application: int
    tokens: int
    """Of the prompt and the answer of the last turn; at first, of the application's beginning."""
    next: Lengths


class Sessions:
    """All sessions of one service; deterministic by seed."""

    def __init__(self, rate_rps: float, seed: int) -> None:
        """Begin with sessions that have not asked yet, as many as make this rate together."""
        self.rate_rps = rate_rps
        self._chance = np.random.default_rng([seed, 11])
        self._luck = _uniform(np.random.default_rng([seed, 14]))
        self._tokens = {
            lengths: _drawn(lengths, np.random.default_rng([seed, 15, place]))
            for place, lengths in enumerate((_FIRST, _LATER, _ANSWER))
        }
        count = max(1, round(rate_rps * _GAP_S))
        ranks = np.arange(1, _APPLICATIONS + 1, dtype=np.float64)
        self._popularity = _up_to(ranks**-_POPULARITY)
        self._activity = _up_to(self._chance.lognormal(0.0, _ACTIVITY_SIGMA, count))
        self._shared = self._chance.integers(*_BEGINNING, _APPLICATIONS, endpoint=True).tolist()
        self._last_s = [-math.inf] * count
        self._begun = 0
        self._sessions = [self._new() for _ in range(count)]

    def turns(self, since_s: float, until_s: float) -> Iterator[Turn]:
        """Draw the requests between two times, in their order; seconds may be negative."""
        count = self._chance.poisson(self.rate_rps * (until_s - since_s))
        for at_s in np.sort(self._chance.uniform(since_s, until_s, count)).tolist():
            yield self._turn(at_s)

    @property
    def most_popular(self) -> float:
        """The share of sessions that the most popular application has."""
        return self._popularity[0]

    def _turn(self, at_s: float) -> Turn:
        place = self._who(at_s)
        self._last_s[place] = at_s
        session = self._sessions[place]
        prompt = session.tokens + next(self._tokens[session.next])
        output = next(self._tokens[_ANSWER])
        shared = self._shared[session.application]
        turn = Turn(at_s, session.number, session.application, shared, prompt, output)
        session.tokens, session.next = prompt + output, _LATER
        if next(self._luck) < 1 / _TURNS or session.tokens + _LATER.most > _MOST_TOKENS:
            self._sessions[place] = self._new()
        return turn

    def _who(self, at_s: float) -> int:
        """Draw by activity among those that have had time to read."""
        for _ in range(10_000):
            place = bisect_right(self._activity, next(self._luck))
            if self._last_s[place] <= at_s - _LEAST_GAP_S:
                return place
        raise RuntimeError(f"of {len(self._last_s)} sessions none is free at {at_s} s")

    def _new(self) -> _Session:
        application = bisect_right(self._popularity, next(self._luck))
        self._begun += 1
        return _Session(self._begun, application, self._shared[application], _FIRST)


def _up_to(weights: npt.NDArray[np.float64]) -> list[float]:
    """Add up shares: the last is one."""
    sums = np.cumsum(weights)
    return [*(sums[:-1] / sums[-1]).tolist(), 1.0]


def _uniform(chance: np.random.Generator) -> Iterator[float]:
    while True:
        yield from chance.random(_AT_ONCE).tolist()


def _drawn(lengths: Lengths, chance: np.random.Generator) -> Iterator[int]:
    while True:
        yield from lengths.draw(chance, _AT_ONCE).tolist()
