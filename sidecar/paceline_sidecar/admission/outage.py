"""When an engine that is away will be back: what `Retry-After` of a 503 says."""

import time
from collections.abc import Callable

SHORTEST_S = 1.0
LONGEST_S = 60.0


class Outage:
    """Times how long the engine is away; its last start says how long the next one takes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = clock()
        self._usual_s: float | None = None

    def begin(self) -> None:
        """Note that the engine is away; may be called again while it is."""
        if self._since is None:
            self._since = self._clock()

    def end(self, *, is_start: bool) -> None:
        """Note that the engine serves: after a start, or where it was only silent for a while."""
        if self._since is not None and is_start:
            self._usual_s = self._clock() - self._since
        self._since = None

    @property
    def remaining_s(self) -> float:
        """Return what is left of a usual start, or where that is over half of the time so far."""
        if self._since is None:
            return SHORTEST_S
        away_s = self._clock() - self._since
        left_s = (self._usual_s or 0.0) - away_s
        return min(max(left_s if left_s > 0 else away_s / 2, SHORTEST_S), LONGEST_S)
