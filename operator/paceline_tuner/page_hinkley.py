"""Page-Hinkley: one signal, watched for a lasting change of its mean. Pure.

E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954); D. V. Hinkley, "Inference about
the change-point from cumulative sum tests", Biometrika 58 (1971). With z the distance from the
running mean in standard deviations, for a rise

    m(T) = sum (z - DRIFT),    alarm when m(T) - min m > RISE

which is g = max(0, g + z - DRIFT) > RISE; for a fall the same of -z, with FALL. The change began
where g was last 0.
"""

import math
from dataclasses import dataclass

_DRIFT = 1.0  # standard deviations
_RISE = 3.5
_FALL = 7.0  # falls are never urgent, and silence between bursts must not be one
_CLIP = 5.0
_WARM_UP = 6  # samples
_MEAN_OVER = 60  # samples: a slow drift is followed, not announced
_SPREAD_OVER = 120
_PRIOR_SAMPLES = 8
_OUTLIER = 3.0  # what one sample adds to the spread is bounded, so that a change does not hide it


@dataclass(frozen=True, slots=True)
class Side:
    """One direction: the sum of distances, and the samples since it was last 0."""

    excess: float = 0.0
    num: int = 0
    total: float = 0.0
    since: float = 0.0

    def add(self, distance: float, value: float, at: float) -> "Side":
        """Count one sample; `distance` is positive in this direction."""
        excess = self.excess + distance - _DRIFT
        if excess <= 0:
            return _CALM
        since = self.since if self.num else at
        return Side(excess, self.num + 1, self.total + value, since)


_CALM = Side()


@dataclass(frozen=True, slots=True)
class PageHinkley:
    """The baseline of one signal, and how far the signal has left it. `add` gives the next one."""

    floor: float
    """The least standard deviation of a sample that is believed."""
    spread: float
    """Standard deviation of one value; what is given is assumed before there are samples."""
    num: int = 0
    mean: float = 0.0
    rise: Side = Side()
    fall: Side = Side()
    changed_at: float | None = None
    """When the change began that the last sample revealed; None where it revealed none."""
    is_rise: bool = False

    def add(self, value: float, at: float, num_values: int = 1) -> "PageHinkley":
        """Take one sample, the mean of `num_values` values of a period that began `at`."""
        noise = 1 / math.sqrt(num_values)
        deviation = max(self.spread * noise, self.floor)
        distance = (value - self.mean) / deviation if self.num else 0.0
        distance = max(-_CLIP, min(_CLIP, distance))
        rise, fall = _CALM, _CALM
        if self.num >= _WARM_UP:
            rise = self.rise.add(distance, value, at)
            fall = self.fall.add(-distance, value, at)
            if rise.excess > _RISE or fall.excess > _FALL:
                return self._begun_anew(rise if rise.excess > _RISE else fall, rise)
        num = self.num + 1
        return PageHinkley(
            self.floor,
            self._spread(distance * deviation / noise),
            num,
            self.mean + (value - self.mean) / min(num, _MEAN_OVER),
            rise,
            fall,
            is_rise=self.is_rise,
        )

    def _spread(self, deviation: float) -> float:
        if self.num == 0:
            return self.spread
        bounded = min(abs(deviation), _OUTLIER * max(self.spread, self.floor))
        square = bounded**2 * (self.num + 1) / self.num  # the mean is itself an estimate
        weight = 1 / (_PRIOR_SAMPLES + min(self.num, _SPREAD_OVER))
        return math.sqrt(self.spread**2 + weight * (square - self.spread**2))

    def _begun_anew(self, side: Side, rise: Side) -> "PageHinkley":
        """Take the samples since the change began as the baseline; keep the spread."""
        return PageHinkley(
            floor=self.floor,
            spread=self.spread,
            num=side.num,
            mean=side.total / side.num,
            changed_at=side.since,
            is_rise=side is rise,
        )
