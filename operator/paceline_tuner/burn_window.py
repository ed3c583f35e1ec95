"""BurnWindow: the last five minutes under one load, one SLA and one device, by request.

A minute tells of a burst as much as of a load. What the SLA is about is longer: a verdict on it
needs the minute and the window to agree, as burn-rate alerts on two windows do (the SRE Workbook,
chapter 5). The window begins anew when something changes, so it follows at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_tuner.attainment import are_late
from paceline_tuner.records import after, column
from paceline_tuner.service_spec import SLA
from paceline_tuner.window import Evidence

_WINDOW_S = 300.0
_LONG_S = 240.0
_MINUTE_S = 60.0
_BURN = 2.0  # times the misses that the objective allows
_MIN_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class BurnPeriod:
    """What ended between two decisions."""

    at: float
    requests: int
    misses: int


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """Requests that arrived since `since`, by the period in which they ended. The pod's clock."""

    since: float = -math.inf
    seen_at: float = -math.inf
    """When it was seen that something had changed."""
    last_seq: int = 0
    periods: tuple[BurnPeriod, ...] = ()
    """Oldest first."""

    def add(self, sla: SLA, evidence: Evidence) -> "BurnWindow":
        """Count what ended since the last decision."""
        now, ended = evidence.now, after(evidence.requests, self.last_seq)
        is_new, weights = column(ended, "arrived_at") >= self.since, column(ended, "weight")
        # Single gaps are the pace's matter, not the load's.
        is_missed = are_late(sla, ended) | (column(ended, "is_as_wanted") == 0)
        period = BurnPeriod(
            now,
            requests=int(weights[is_new].sum()),
            misses=int(weights[is_new & is_missed].sum()),
        )
        kept = [old for old in self.periods if old.at > now - _WINDOW_S]
        last_seq = int(column(ended, "seq")[-1]) if ended else self.last_seq
        return BurnWindow(self.since, self.seen_at, last_seq, (*kept, period))

    def is_spent(self, objective: float) -> bool:
        """More of its requests missed than the objective allows."""
        return _share(self.periods) > 1 - objective

    def is_burning(self, objective: float, now: float) -> bool:
        """Twice as many missed in the last minute as the objective allows."""
        minute = self._minute(now)
        return bool(minute) and _share(minute) > _BURN * (1 - objective)

    def is_lost(self, objective: float, now: float) -> bool:
        """Twice as many missed over nearly five minutes as the objective allows."""
        is_long = bool(self.periods) and self.periods[0].at <= now - _LONG_S
        return is_long and _share(self.periods) > _BURN * (1 - objective)

    def is_met(self, objective: float, now: float) -> bool:
        """No more missed in the last minute than the objective allows."""
        minute = self._minute(now)
        return bool(minute) and _share(minute) <= 1 - objective

    def _minute(self, now: float) -> Sequence[BurnPeriod]:
        """Empty where too few requests ended to tell."""
        minute = [period for period in self.periods if period.at > now - _MINUTE_S]
        is_enough = sum(period.requests for period in minute) >= _MIN_REQUESTS
        return minute if is_enough else ()


def _share(periods: Sequence[BurnPeriod]) -> float:
    """Share of the requests that missed."""
    requests = sum(period.requests for period in periods)
    return sum(period.misses for period in periods) / max(requests, 1)
