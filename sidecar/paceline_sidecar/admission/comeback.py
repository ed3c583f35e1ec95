"""When a request that is refused now would be admitted: what `Retry-After` says.

They assume that the queue drains at the measured rate and that only clients who were already told
to retry join it, each at its announced time. So the clients of a burst come back one after the
other and not all at once.
"""

import heapq
from collections.abc import Iterable
from itertools import islice

SHORTEST_S = 0.05
LONGEST_S = 30.0
"""The present rate says nothing about a later time."""
UNKNOWN_S = 1.0
"""Said where no rate was measured yet: no prediction, only a time to try again."""


class Expected:
    """Who was told to come back and is not due yet."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int]] = []
        self._places = 0
        self._tokens = 0

    def add(self, due_at: float, *, places: int, tokens: int) -> None:
        """Expect a request of so many places and prompt tokens."""
        heapq.heappush(self._due, (due_at, places, tokens))
        self._places += places
        self._tokens += tokens

    def until_now(self, now: float) -> tuple[int, int]:
        """Return the places and the prompt tokens of those who are still expected."""
        while self._due and self._due[0][0] <= now:
            _, places, tokens = heapq.heappop(self._due)
            self._places -= places
            self._tokens -= tokens
        return self._places, self._tokens


def seconds_until_places(
    missing: int, waiting: Iterable[int], *, rate: float | None, worked: float
) -> float:
    """Predict when `missing` of those who wait, with these prompt tokens, have left the queue.

    Of the first one's tokens `worked` are done. Where more are missing than wait, those who are
    expected leave as the others do.
    """
    first = list(islice(waiting, missing))
    if rate is None or not first:
        return UNKNOWN_S
    tokens = sum(first) * missing / len(first)
    return _bounded((tokens - worked) / rate)


def seconds_until_fewer(tokens: float, *, ahead: int, rate: float | None, worked: float) -> float:
    """Predict when `tokens` fewer wait; an empty queue takes anybody, so never later than that."""
    if rate is None:
        return UNKNOWN_S
    return _bounded((min(tokens, ahead) - worked) / rate)


def _bounded(seconds: float) -> float:
    return min(max(seconds, SHORTEST_S), LONGEST_S)
