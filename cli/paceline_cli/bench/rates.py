"""Rates of requests and tokens a second, each with an interval. Pure.

The interval has a width also where all requests turned out alike.

    rate = offered a second * share of hits * what a hit brings on average

What varies between two runs of one plan: who is a hit, and what each brings. How many are offered a
second does not in an open loop, as the plan says when each is sent: arrivals are no noise there. In
a closed loop the next is sent when one has ended, so many at once:

    offered a second = mean number at once / mean time of a request    (Little 1961)

A draw of slow requests then offers fewer a second, and the interval is that of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_cli.bench.intervals import Draws, Estimate, at_least_wilsons


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one stretch of time over the requests that were due in it."""

    drawn: Draws
    seconds: float
    lasted_s: Sequence[float] | None = None
    """How long each request took; None in an open loop, where it moves no other."""

    def of(
        self, hits: Sequence[bool], brings: Sequence[float], *, usual: float | None = None
    ) -> Estimate:
        """Return what all hits bring a second, no narrower than Wilson's interval of their share.

        `brings` has a figure for each request. Where none is a hit one would bring `usual`.
        """
        found = self._drawn([each * is_hit for each, is_hit in zip(brings, hits, strict=True)])
        num_hits = sum(hits)
        of_a_hit = usual
        if found.value is not None and num_hits:
            of_a_hit = found.value * self.seconds / num_hits
        offered_rps = len(hits) / self.seconds
        unit = None if of_a_hit is None else offered_rps * of_a_hit
        return at_least_wilsons(found, num_hits, len(hits), unit=unit)

    def _drawn(self, values: Sequence[float]) -> Estimate:
        lasted_s = self.lasted_s
        if lasted_s is None or not sum(lasted_s):
            return self.drawn.mean(values, scale=len(values) / self.seconds)
        at_once = sum(lasted_s) / self.seconds
        return self.drawn.ratio(values, lasted_s, scale=at_once)
