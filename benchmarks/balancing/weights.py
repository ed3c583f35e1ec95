"""Weights from load reports, and the schedule that follows them: Envoy's client-side weighting.

    weight = rps_fractional / application_utilization, a whole number of at least 1

The newest report of a pod counts, and is not smoothed: what smoothing there is, is in the report.
A pod whose first report is younger than the blackout period, or whose last one has expired, has the
median of the others. The schedule is earliest deadline first: a pod is due again 1/weight after
its last pick.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

BLACKOUT_S: Final = 10.0
UPDATE_S: Final = 1.0
EXPIRATION_S: Final = 180.0
"""The periods of examples/gateway/balance.yaml, which are Envoy's defaults."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer says of its pod's load."""

    at_s: float
    """When the answer began."""
    rps: float
    utilization: float

    def weight(self, scale: int = 1) -> int:
        """Requests a second that the pod could serve, cut to a whole number as Envoy does."""
        return max(1, int(scale * self.rps / self.utilization))


@dataclass(slots=True)
class Reports:
    """The newest report of each pod, and since when it reports."""

    newest: list[Report | None]
    scale: int = 1
    _since_s: list[float | None] = field(init=False)

    def __post_init__(self) -> None:
        """Nobody has reported."""
        self._since_s = [None] * len(self.newest)

    def hear(self, pod: int, report: Report) -> None:
        """Take the place of what the pod said before."""
        self.newest[pod] = report
        if self._since_s[pod] is None:
            self._since_s[pod] = report.at_s

    def weights(self, now_s: float) -> list[int]:
        """Return each pod's weight; the median where a pod's own does not count."""
        own = [self._weight(pod, now_s) for pod in range(len(self.newest))]
        known = [weight for weight in own if weight is not None]
        default = int(median(known)) if known else 1
        return [default if weight is None else weight for weight in own]

    def _weight(self, pod: int, now_s: float) -> int | None:
        report, since_s = self.newest[pod], self._since_s[pod]
        if report is None or since_s is None or since_s > now_s - BLACKOUT_S:
            return None
        if report.at_s < now_s - EXPIRATION_S:
            self._since_s[pod] = None
            return None
        return report.weight(self.scale)


class Schedule:
    """Picks pods in proportion to their weights."""

    def __init__(self, weights: Sequence[int], picked: int = 0) -> None:
        """Begin as after so many picks, that not every new schedule begins with the same pods."""
        total = sum(weights)
        self._weights = weights
        self._due = [
            ((picked * weight // total + 1) / weight, pod) for pod, weight in enumerate(weights)
        ]
        heapq.heapify(self._due)
        for _ in range(picked - sum(picked * weight // total for weight in weights)):
            self.pick()

    def pick(self) -> int:
        """Return the number of the pod that is due first."""
        at, pod = self._due[0]
        heapq.heapreplace(self._due, (at + 1 / self._weights[pod], pod))
        return pod


def next_update(now_s: float) -> float:
    """Return when weights are next worked out."""
    return (math.floor(now_s / UPDATE_S) + 1) * UPDATE_S
