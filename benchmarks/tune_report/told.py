"""What DeviceHealthy=False told of slow devices, and whether there was one."""

from collections.abc import Sequence
from dataclasses import dataclass

from tune_report.score import Score
from tune_report.workloads import Workload

_DELAY_S = 60.0
_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class Told:
    """Disturbances of the device and ticks, of some episodes."""

    slow: int = 0
    """Spells in which the device was slow."""
    found: int = 0
    """Of them, told within a minute of their begin, and withdrawn within one of their end."""
    false: int = 0
    """Ticks that told of a slow device where it was not, a minute after a spell left out."""

    def __add__(self, other: "Told") -> "Told":
        """Both."""
        return Told(self.slow + other.slow, self.found + other.found, self.false + other.false)


def told(workload: Workload, scores: Sequence[Score]) -> Told:
    """Judge the episodes of one workload."""
    return sum((_told(workload, score) for score in scores), start=Told())


def _told(workload: Workload, score: Score) -> Told:
    spells = [(d.start_s, min(d.end_s, workload.duration_s)) for d in workload.disturbances]
    found = sum(_is_found(score, workload, *spell) for spell in spells)
    ticks = (_PERIOD_S * (i + 1) for i in range(int(workload.duration_s / _PERIOD_S)))
    false = sum(
        _is_slow(score, at_s) and not any(a <= at_s <= b + _DELAY_S for a, b in spells)
        for at_s in ticks
    )
    return Told(len(spells), found, false)


def _is_found(score: Score, workload: Workload, start_s: float, end_s: float) -> bool:
    is_over = end_s + _DELAY_S < workload.duration_s
    return _is_slow(score, start_s + _DELAY_S) and not (
        is_over and _is_slow(score, end_s + _DELAY_S)
    )


def _is_slow(score: Score, at_s: float) -> bool:
    """What held after the tick at this time."""
    assert score.control is not None
    states = [value for changed_s, value in score.control.device if changed_s <= at_s]
    return bool(states) and states[-1] == "False"
