"""SLAAchievable as reported against what was true, counted in ticks. Pure."""

import statistics
from dataclasses import dataclass

from tune_report.run import OURS, Results
from tune_report.score import EpisodeScore

_DELAY_S = 60.0
_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class Tally:
    """Ticks of SLAAchievable against the truth."""

    true: int = 0
    false: int = 0
    missed: int = 0
    left_out: int = 0
    """Phases too near the line to say."""

    @property
    def precision(self) -> float:
        """Share of the `False` ticks that were right."""
        return self.true / max(self.true + self.false, 1)

    @property
    def recall(self) -> float:
        """Share of the ticks that should have been `False` and were."""
        return self.true / max(self.true + self.missed, 1)


def tally(results: Results) -> tuple[Tally, dict[str, str]]:
    """Count ticks from a minute into each stationary stretch on.

    The SLA was achievable in a stretch where any arm attained 99 % in the median over seeds, and
    was not where none attained 98 %; stretches in between are left out.
    """
    total, notes = Tally(), {}
    for workload in results.workloads:
        ends = (*workload.phases[1:], workload.duration_s)
        for index, (start_s, end_s) in enumerate(zip(workload.phases, ends, strict=False)):
            attained = _best_attained(results, workload.name, index)
            if 0.98 <= attained < 0.99:
                total = _plus(total, Tally(left_out=1))
                continue
            here = Tally()
            for score in results.scores[workload.name, OURS]:
                got = _count(score, start_s + _DELAY_S, end_s, is_achievable=attained >= 0.99)
                here = _plus(here, got)
            total = _plus(total, here)
            if here.false or here.missed:
                notes[f"{workload.name}, from {start_s:.0f} s"] = (
                    f"best {attained:.1%}, {here.false} false and {here.missed} missed ticks"
                )
    return total, notes


def _best_attained(results: Results, workload: str, phase: int) -> float:
    return max(
        statistics.median(score.phases[phase].least for score in scores)
        for (name, _), scores in results.scores.items()
        if name == workload
    )


def _count(score: EpisodeScore, start_s: float, end_s: float, *, is_achievable: bool) -> Tally:
    assert score.control is not None
    said = 0
    ticks = 0
    at_s = start_s
    while at_s < end_s:
        state = [value for changed_s, value in score.control.verdicts if changed_s <= at_s]
        said += bool(state) and state[-1] == "False"
        ticks += 1
        at_s += _PERIOD_S
    return Tally(false=said) if is_achievable else Tally(true=said, missed=ticks - said)


def _plus(a: Tally, b: Tally) -> Tally:
    return Tally(a.true + b.true, a.false + b.false, a.missed + b.missed, a.left_out + b.left_out)
