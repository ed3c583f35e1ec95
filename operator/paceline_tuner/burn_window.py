"""BurnWindow: the last five minutes under one load, one SLA and one device, by request.

A minute tells of a burst as much as of a load. What the SLA is about is longer: a verdict on it
needs the minute and the window to agree, as burn-rate alerts on two windows do (the SRE Workbook,
chapter 5). The window begins anew when something changes, so it follows at once.
"""

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline_tuner.attainment import are_late
from paceline_tuner.records import after, column
from paceline_tuner.service_spec import SLA
from paceline_tuner.window import Evidence

if TYPE_CHECKING:
    Numbers = array[float]
else:
    Numbers = array  # which cannot be subscripted before Python 3.12

_WINDOW_S = 300.0
_LONG_S = 240.0
_MINUTE_S = 60.0
_BURN = 2.0  # times the misses that the objective allows
_MIN_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """Requests that arrived since `since`, by the period in which they ended. The pod's clock."""

    since: float = -math.inf
    seen_at: float = -math.inf
    """When it was seen that something had changed."""
    last_seq: int = 0
    ends: Numbers = field(default_factory=lambda: array("d"))
    """When each period ended, oldest first."""
    requests: Numbers = field(default_factory=lambda: array("d"))
    """How many ended in each of them."""
    misses: Numbers = field(default_factory=lambda: array("d"))
    """Of those, how many missed."""

    def add(self, sla: SLA, evidence: Evidence) -> "BurnWindow":
        """Count what ended since the last decision."""
        now, ended = evidence.now, after(evidence.requests, self.last_seq)
        is_new, weights = column(ended, "arrived_at") >= self.since, column(ended, "weight")
        # Single gaps are the pace's matter, not the load's.
        is_missed = are_late(sla, ended) | (column(ended, "is_as_wanted") == 0)
        last_seq = int(column(ended, "seq")[-1]) if ended else self.last_seq
        first = bisect_right(self.ends, now - _WINDOW_S)
        return BurnWindow(
            self.since,
            self.seen_at,
            last_seq,
            ends=_with(self.ends[first:], now),
            requests=_with(self.requests[first:], float(weights[is_new].sum())),
            misses=_with(self.misses[first:], float(weights[is_new & is_missed].sum())),
        )

    def is_spent(self, objective: float) -> bool:
        """More of its requests missed than the objective allows."""
        return self._share() > 1 - objective

    def is_burning(self, objective: float, now: float) -> bool:
        """Twice as many missed in the last minute as the objective allows."""
        minute = self._minute(now)
        return minute is not None and self._share(minute) > _BURN * (1 - objective)

    def is_lost(self, objective: float, now: float) -> bool:
        """Twice as many missed over nearly five minutes as the objective allows."""
        is_long = bool(self.ends) and self.ends[0] <= now - _LONG_S
        return is_long and self._share() > _BURN * (1 - objective)

    def is_met(self, objective: float, now: float) -> bool:
        """No more missed in the last minute than the objective allows."""
        minute = self._minute(now)
        return minute is not None and self._share(minute) <= 1 - objective

    def _minute(self, now: float) -> int | None:
        """Find where the last minute begins; None where too few requests ended in it to tell."""
        first = bisect_right(self.ends, now - _MINUTE_S)
        return first if sum(self.requests[first:]) >= _MIN_REQUESTS else None

    def _share(self, first: int = 0) -> float:
        """Share of the requests that missed, of the periods from this one on."""
        return sum(self.misses[first:]) / max(sum(self.requests[first:]), 1.0)


def _with(values: Numbers, value: float) -> Numbers:
    values.append(value)
    return values
