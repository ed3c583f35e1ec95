"""Kubernetes' horizontal autoscaler, from a metric to replicas. Pure but for what it remembers.

As `autoscaling/v2` and its controller do it: a tolerance, pods that are not ready, stabilisation
windows, and the most that a period may add. KEDA gives its metrics to this very controller.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

SYNC_S: Final = 15.0
_TOLERANCE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Seen:
    """What an autoscaler sees at one sync. Metrics are as old as a scrape makes them."""

    replicas: int
    """Pods that there are, ready or not, but for those that leave."""
    ready: int
    utilization: float | None = None
    """Arrivals over what the pods can serve within the SLA."""
    recommended: int | None = None
    unforeseen: int | None = None
    """The same without a look ahead."""
    waiting: int = 0
    in_flight: int = 0
    busy: Sequence[float] = ()
    """The share of the time in which each ready pod computes."""


class Metric(Protocol):
    """One metric and its target."""

    def wanted(self, seen: Seen) -> int | None:
        """Return the replicas that it asks for; None without a value."""
        ...


@dataclass(frozen=True, slots=True)
class ByValue:
    """An Object metric with a target of type Value: a ratio, times the pods that are ready."""

    target: float = 0.8

    def wanted(self, seen: Seen) -> int | None:
        """Multiply the ratio by the pods that are ready now."""
        if seen.utilization is None:
            return None
        ratio = seen.utilization / self.target
        return seen.replicas if _is_near(ratio) else math.ceil(ratio * seen.ready)


@dataclass(frozen=True, slots=True)
class ByAverage:
    """An External metric with a target of type AverageValue: so much for each pod."""

    field: str
    """Name of the field of `Seen` that is read."""
    each: float
    up_tolerance: float = _TOLERANCE
    """How far more than wanted is let be."""

    def wanted(self, seen: Seen) -> int | None:
        """Divide the sum by what one pod may have."""
        total = getattr(seen, self.field)
        if total is None:
            return None
        ratio = total / (self.each * seen.replicas)
        is_near = 1 - _TOLERANCE <= ratio <= 1 + self.up_tolerance
        return seen.replicas if is_near else math.ceil(total / self.each - 1e-9)


@dataclass(frozen=True, slots=True)
class ByProcessor:
    """A Resource metric: the mean over pods, of which those that start count as idle."""

    target: float = 0.8

    def wanted(self, seen: Seen) -> int | None:
        """Multiply the mean by the pods that it is of."""
        if not seen.busy:
            return None
        ratio = sum(seen.busy) / len(seen.busy) / self.target
        starting = seen.replicas - len(seen.busy)
        if starting <= 0 or ratio <= 1:
            return seen.replicas if _is_near(ratio) else math.ceil(ratio * len(seen.busy))
        ratio = sum(seen.busy) / seen.replicas / self.target
        return seen.replicas if _is_near(ratio) or ratio < 1 else math.ceil(ratio * seen.replicas)


@dataclass(slots=True)
class Horizontal:
    """Remembers what it recommended and what it did, as its windows and policies need."""

    metric: Metric
    least: int = 1
    most: int = 60
    up_window_s: float = 0.0
    down_window_s: float = 300.0
    _past: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, now: float, seen: Seen) -> int:
        """Return how many replicas there shall be; without a metric, as many as there are."""
        found = self.metric.wanted(seen)
        if found is None:
            return seen.replicas
        wanted = min(max(found, self.least), self.most)
        longest_s = max(self.up_window_s, self.down_window_s)
        self._past = [each for each in self._past if each[0] > now - longest_s]
        self._past.append((now, wanted))
        up = min(count for at, count in self._past if at > now - self.up_window_s or at == now)
        down = max(count for at, count in self._past if at > now - self.down_window_s or at == now)
        # The default policies: within 15 s, twice as many or four more; all may go.
        fastest = max(2 * seen.replicas, seen.replicas + 4)
        if seen.replicas < up:
            return min(up, fastest)
        return min(seen.replicas, down)


def _is_near(ratio: float) -> bool:
    return abs(ratio - 1) <= _TOLERANCE
