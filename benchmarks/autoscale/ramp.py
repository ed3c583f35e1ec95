"""Clients whose number rises and falls: a known rate, and requests that come by chance at it."""

from dataclasses import dataclass

import numpy as np

from paceline_sim.requests import Requests

_PROMPT, _OUTPUT = (200, 500), (16, 48)


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that is low, rises, stays high, and falls back: requests per second, seconds."""

    low_rps: float
    high_rps: float
    quiet_s: float = 300.0
    rise_s: float = 600.0
    stay_s: float = 1200.0
    fall_s: float = 600.0
    rest_s: float = 600.0

    @property
    def seconds(self) -> float:
        """How long all of it takes."""
        return self.quiet_s + self.rise_s + self.stay_s + self.fall_s + self.rest_s

    def rate_rps(self, at: float) -> float:
        """The expected rate at this second; outside, that of the nearest end."""
        corners = np.cumsum([0.0, self.quiet_s, self.rise_s, self.stay_s, self.fall_s, self.rest_s])
        low, high = self.low_rps, self.high_rps
        return float(np.interp(at, corners, [low, low, high, high, low, low]))

    def most_rps(self, since: float, until: float) -> float:
        """The highest expected rate between two seconds."""
        corners = [
            since,
            until,
            self.quiet_s + self.rise_s,
            self.quiet_s + self.rise_s + self.stay_s,
        ]
        return max(self.rate_rps(at) for at in corners if since <= at <= until)

    def requests(self, seed: int) -> Requests:
        """Draw requests that come independently of each other."""
        chance = np.random.default_rng(seed)
        count = chance.poisson(self.high_rps * self.seconds)
        at = np.sort(chance.uniform(0, self.seconds, count))
        rates = np.array([self.rate_rps(each) for each in at])
        at = at[chance.uniform(0, self.high_rps, count) < rates]
        count = len(at)
        return Requests(
            at,
            chance.integers(*_PROMPT, count, endpoint=True),
            chance.integers(*_OUTPUT, count, endpoint=True),
            np.zeros(count, np.int64),
            np.zeros(count, np.int8),
        )


def ramps(one_rps: float) -> dict[str, Ramp]:
    """List the ramps, in shares of what one pod serves within the SLA."""
    return {
        "one to three pods": Ramp(0.6 * one_rps, 3.0 * one_rps),
        "five to fifty pods": Ramp(
            4.0 * one_rps, 40.0 * one_rps, rise_s=1200.0, stay_s=600.0, rest_s=300.0
        ),
    }
