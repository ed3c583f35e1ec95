"""How long answers become, learned online from what like requests gave.

A request is alike another in steps: all, those of its lane and model, of its caller, with about its
`max_tokens`, with about its prompt. Each step has a histogram of output lengths in half octaves,
and the finer one counts as much beside the coarser as it has seen (a hierarchical Dirichlet prior,
as in Teh, 2006, with one strength for all). What was seen long ago fades.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_BINS_PER_OCTAVE = 2
_NUM_BINS = 48
"""Up to 2^24 tokens."""
_PRIOR = 8.0
"""Requests that the coarser step counts for, in the finer one's histogram."""
_MOST_SEEN = 512.0
"""A histogram that holds so many is halved: it forgets over about as many requests."""
_MOST_KINDS = 4096
"""Histograms that are kept; the one that was used longest ago leaves."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a request when it arrives."""

    model: str = ""
    """The adapter's name; empty for the model as it is."""
    lane: str = "interactive"
    caller: str = ""
    max_tokens: int | None = None
    """None where the client asked for no bound."""
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Lengths:
    """The predicted distribution of a request's output tokens."""

    shares: Sequence[float]
    """Of each half octave; they add up to 1."""
    most: float
    """No output is longer: `max_tokens`."""

    @property
    def mean(self) -> float:
        """Return the expected output tokens."""
        return sum(
            share * min(_middle(place), self.most) for place, share in enumerate(self.shares)
        )

    def quantile(self, share: float) -> float:
        """Return the length that so large a share of the outputs do not exceed."""
        left = share
        for place, mine in enumerate(self.shares):
            if mine >= left and mine > 0:
                return min(_edge(place + left / mine), self.most)
            left -= mine
        return self.most


class LengthModel:
    """Predicts output lengths; starts with knowing nothing."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[object, ...], list[float]] = OrderedDict()

    def predict(self, known: Known) -> Lengths | None:
        """Return what to expect; None before the first request has ended."""
        shares: list[float] | None = None
        for kind in _kinds_of(known):
            counts = self._kinds.get(kind)
            if counts is None:
                break
            seen = sum(counts)
            if shares is None:
                shares = [count / seen for count in counts]
            else:
                total = seen + _PRIOR
                shares = [
                    (count + _PRIOR * share) / total
                    for count, share in zip(counts, shares, strict=True)
                ]
        return None if shares is None else Lengths(shares, known.max_tokens or math.inf)

    def learn(self, known: Known, output_tokens: int) -> None:
        """Take in a request that has ended by itself, or at its `max_tokens`."""
        place = _place(output_tokens)
        for kind in _kinds_of(known):
            counts = self._kinds.setdefault(kind, [0.0] * _NUM_BINS)
            self._kinds.move_to_end(kind)
            counts[place] += 1.0
            if sum(counts) >= _MOST_SEEN:
                counts[:] = [count / 2 for count in counts]
        while len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)


def _kinds_of(known: Known) -> Iterator[tuple[object, ...]]:
    """List the kinds that a request is of, the coarsest first."""
    bound = None if known.max_tokens is None else known.max_tokens.bit_length()
    names = (known.lane, known.model), known.caller, bound, known.prompt_tokens.bit_length()
    return (names[:count] for count in range(len(names) + 1))


def _place(tokens: int) -> int:
    return min(int(math.log2(max(tokens, 1)) * _BINS_PER_OCTAVE), _NUM_BINS - 1)


def _edge(place: float) -> float:
    return float(2.0 ** (place / _BINS_PER_OCTAVE))


def _middle(place: int) -> float:
    return _edge(place + 0.5)
