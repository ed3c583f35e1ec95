"""Recommendation: how many pods a service needs, held against what chance does to a need. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Final

_HEADROOM: Final = 1.15
_KEPT_S: Final = 60.0
"""λ* of a pod moves by a tenth from one look to the next, so it is the median of a minute."""
# Requests come independently of each other, and each pod measures its own λ*. So what chance does
# to a need grows as the root of its pods: a steady one is off by about a tenth of that root.
_OVER: Final = 0.1
_UNDER: Final = 0.25


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The pods that were recommended last, and the capacities that this came from."""

    replicas: int | None = None
    """None while no pod knows its λ*."""
    _capacities: tuple[tuple[float, float], ...] = ()
    """Unix seconds, and the mean λ* of a pod in requests per second, oldest first."""

    def updated(
        self, capacities: Sequence[float], arrivals_rps: float, now: float
    ) -> "Recommendation":
        """Recommend the pods that would serve these arrivals within the SLA.

        `capacities` are λ* of the pods that know it, requests per second; `now` is Unix seconds.
        """
        if sum(capacities) <= 0:
            return Recommendation()
        kept = tuple(each for each in self._capacities if now - _KEPT_S < each[0] < now)
        kept = (*kept, (now, sum(capacities) / len(capacities)))
        need = _need(arrivals_rps, median_high(capacity for _, capacity in kept))
        return Recommendation(self._held(need), kept)

    def _held(self, need: float) -> int:
        """Keep the last number while the need differs by no more than chance may make of it.

        A need that is a little over is served by the headroom. Less than it takes for a pod to go
        is asked for one to come: too few pods break the SLA, too many only cost.
        """
        last = self.replicas
        if last is not None:
            fewer = last - 1
            is_over = need > last + _OVER * math.sqrt(last)
            is_under = need <= fewer - _UNDER * math.sqrt(fewer)
            if not is_over and not is_under:
                return last
        return _whole(need)


def replicas_for(arrivals_rps: float, capacity_rps: float) -> int:
    """Count the pods that serve these arrivals within the SLA, given λ* of one, above 0."""
    return _whole(_need(arrivals_rps, capacity_rps))


def _need(arrivals_rps: float, capacity_rps: float) -> float:
    return arrivals_rps * _HEADROOM / capacity_rps


def _whole(need: float) -> int:
    return max(1, math.ceil(need))
