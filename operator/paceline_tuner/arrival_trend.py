"""ServiceArrivals: what arrives at a service, and where it is going. Pure.

Pods that are asked for now serve only once they have started, so the forecast looks that far ahead.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import numpy as np

COUNTED_S: Final = 60.0
"""A rate is what arrived within the minute before: it tells of half a minute ago."""
_SPAN_S: Final = 240.0
_EVERY_S: Final = 10.0
_LEAST_POINTS: Final = 4
_DOUBT: Final = 1.5
"""Standard errors: what chance alone may have made of a slope."""
_MOST: Final = 2.0
"""A forecast is never more than this many times what arrives."""


@dataclass(frozen=True, slots=True)
class ArrivalTrend:
    """The arrival rates of the last minutes, oldest first."""

    points: tuple[tuple[float, float], ...] = ()
    """Unix seconds, and requests per second."""

    def seen(self, at: float, rate_rps: float) -> "ArrivalTrend":
        """Add a rate; one that follows another too soon replaces it, old ones are dropped."""
        kept = tuple(point for point in self.points if at - _SPAN_S <= point[0] < at)
        if len(kept) > 1 and kept[-1][0] - kept[-2][0] < _EVERY_S:
            kept = kept[:-1]
        return ArrivalTrend((*kept, (at, rate_rps)))

    def ahead_rps(self, lead_s: float) -> float:
        """Forecast the rate `lead_s` from now: a rise is carried on, a fall is not.

        The slope is the median of those between all pairs of points, which a ramp moves and a
        step does not. Of slope and level only that is taken which so few requests can prove:
        chance must neither ask for a pod nor take one.
        """
        if not self.points:
            return 0.0
        newest_rps, mean_rps = self.points[-1][1], self._mean_rps
        error_rps = math.sqrt(mean_rps / COUNTED_S)
        whole, newest = self._slopes()
        doubt = _DOUBT * self._slope_error()
        # What has ended is not carried on: both must rise, or both must fall.
        rise = min(whole, newest) - doubt
        if rise > 0:
            forecast_rps = newest_rps + rise * (lead_s + COUNTED_S / 2)
        elif max(whole, newest) + doubt < 0:
            forecast_rps = min(newest_rps + error_rps, mean_rps)
        else:  # steady, unless the newest proves more
            forecast_rps = max(newest_rps - error_rps, mean_rps)
        return min(forecast_rps, _MOST * newest_rps)

    @property
    def quiet_s(self) -> float:
        """Seconds over which every look found that nothing arrives; at most four minutes."""
        quiet = [at for at, _ in takewhile(lambda point: point[1] == 0, reversed(self.points))]
        return quiet[0] - quiet[-1] if quiet else 0.0

    @property
    def _mean_rps(self) -> float:
        return sum(rate for _, rate in self.points) / len(self.points)

    def _slopes(self) -> tuple[float, float]:
        """Return the slope of all points, and that of the newest half: requests per second squared.

        Each is 0 before there is enough to tell.
        """
        newest = self.points[len(self.points) // 2 :]
        return _median_slope(self.points), _median_slope(newest)

    def _slope_error(self) -> float:
        """The standard error of a slope over requests that come independently of each other."""
        counted_s = self.points[-1][0] - self.points[0][0] + COUNTED_S
        return math.sqrt(12 * self._mean_rps / counted_s**3)


def _median_slope(points: Sequence[tuple[float, float]]) -> float:
    if len(points) < _LEAST_POINTS:
        return 0.0
    at, rate = np.array(points, np.float64).T
    first, second = np.triu_indices(len(at), k=1)
    return float(np.median((rate[second] - rate[first]) / (at[second] - at[first])))


@dataclass(frozen=True, slots=True)
class _Departure:
    """A pod that left: the others get its requests, and show it within the next minute."""

    at: float
    rate_rps: float

    def missing_rps(self, now: float) -> float:
        """What arrived here within the minute before `now`, as a rate."""
        return self.rate_rps * max(0.0, 1 - (now - self.at) / COUNTED_S)


@dataclass(frozen=True, slots=True)
class ServiceArrivals:
    """The arrivals of all pods of one service."""

    trend: ArrivalTrend = field(default_factory=ArrivalTrend)
    _pods: Mapping[str, float] = field(default_factory=dict)
    _departures: tuple[_Departure, ...] = ()

    def seen(self, pods: Mapping[str, float | None], now: float) -> "ServiceArrivals":
        """Add what was read of each pod, requests per second; None where one gave no telemetry.

        Such a pod is taken to be like the others; where none gave any, nothing is learned.
        """
        rates = {name: rate for name, rate in pods.items() if rate is not None}
        if not rates:
            return self
        left = [_Departure(now, rate) for name, rate in self._pods.items() if name not in pods]
        departures = tuple(each for each in (*self._departures, *left) if each.missing_rps(now) > 0)
        total_rps = sum(rates.values()) * len(pods) / len(rates)
        total_rps += sum(each.missing_rps(now) for each in departures)
        known = {name: rates.get(name, self._pods.get(name, 0.0)) for name in pods}
        return ServiceArrivals(self.trend.seen(now, total_rps), known, departures)
