"""DeviceVerdicts: how often DeviceHealthy=False was right about slow devices. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from tune_report.score import EpisodeScore
from tune_report.workloads import ReportWorkload

_DELAY_S = 60.0
_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class DeviceVerdicts:
    """Counts over the disturbances and the ticks of some episodes."""

    slow: int = 0
    """Periods in which the device was slow."""
    found: int = 0
    """Slow periods reported within a minute, and withdrawn within a minute of their end."""
    false: int = 0
    """Ticks that reported a slow device where it was well; a minute after each is left out."""

    def __add__(self, other: "DeviceVerdicts") -> "DeviceVerdicts":
        """Add two workloads up."""
        return DeviceVerdicts(
            self.slow + other.slow, self.found + other.found, self.false + other.false
        )


def device_verdicts(workload: ReportWorkload, scores: Sequence[EpisodeScore]) -> DeviceVerdicts:
    """Judge the episodes of one workload."""
    return sum((_judged(workload, score) for score in scores), start=DeviceVerdicts())


def _judged(workload: ReportWorkload, score: EpisodeScore) -> DeviceVerdicts:
    periods = [(d.start_s, min(d.end_s, workload.duration_s)) for d in workload.disturbances]
    found = sum(_is_found(score, workload, *period) for period in periods)
    ticks = (_PERIOD_S * (i + 1) for i in range(int(workload.duration_s / _PERIOD_S)))
    false = sum(
        _is_slow(score, at_s) and not any(a <= at_s <= b + _DELAY_S for a, b in periods)
        for at_s in ticks
    )
    return DeviceVerdicts(len(periods), found, false)


def _is_found(score: EpisodeScore, workload: ReportWorkload, start_s: float, end_s: float) -> bool:
    is_over = end_s + _DELAY_S < workload.duration_s
    return _is_slow(score, start_s + _DELAY_S) and not (
        is_over and _is_slow(score, end_s + _DELAY_S)
    )


def _is_slow(score: EpisodeScore, at_s: float) -> bool:
    """Whether the device was reported as slow after the tick at this time."""
    assert score.control is not None
    states = [value for changed_s, value in score.control.device if changed_s <= at_s]
    return bool(states) and states[-1] == "False"
