"""When requests arrive: evenly, as a Poisson process, in gamma bursts, or all at once. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests that come at the same moment, then silence until the next burst."""

    count: int
    every_s: float

    @property
    def rate_rps(self) -> float:
        """Requests a second over a whole period."""
        return self.count / self.every_s


def arrivals(count: int, *, cv: float, duration_s: float, random: Random) -> Sequence[float]:
    """`count` arrival times in [0, duration_s): gamma gaps, scaled to fill the time exactly.

    With a `cv` of 1 it is a Poisson process that is known to bring `count` arrivals.
    """
    if cv == 0:
        return [duration_s * (index + 0.5) / count for index in range(count)]
    shape = 1 / cv**2
    # One gap more than arrivals: the last lies between the last arrival and the end.
    gaps = [random.gammavariate(shape, 1.0) for _ in range(count + 1)]
    scale = duration_s / sum(gaps)
    times: list[float] = []
    now_s = 0.0
    for gap in gaps[:-1]:
        now_s += gap * scale
        times.append(min(now_s, duration_s))
    return times


def burst_arrivals(burst: Burst, *, duration_s: float) -> Sequence[float]:
    """Every arrival of the bursts that begin before `duration_s`."""
    times: list[float] = []
    while (start_s := len(times) // burst.count * burst.every_s) < duration_s:
        times += [start_s] * burst.count
    return times
