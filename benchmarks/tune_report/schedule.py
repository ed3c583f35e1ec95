"""The best schedule: pairs that may change each minute, found with the future known.

A search for one seed, whose requests, disturbances and noise it plays again and again. It begins
with the best fixed pair in every minute and goes through the minutes: in each it tries the pairs
around the present one, keeps the best, and goes on with the engines as that minute left them. What
a minute leaves to the next is simulated, so the result is an achieved goodput and not a bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from paceline_sim.simulated_engine import Circumstances, SimulatedEngine
from paceline_sim.state import EngineArrays
from paceline_wire.limits import Limits
from tune_report.cache import Code
from tune_report.episode import DRAIN_S, SHED_AT, pod_run
from tune_report.oracle import TRIALS, Pair, grid
from tune_report.score import EpisodeScore, score
from tune_report.settings import ServingSetting
from tune_report.workloads import PodPart, ReportWorkload, workload_named

SCHEDULE_TRIALS = 10 * TRIALS
_MINUTE_S = 60.0
_REACH = 2
"""Places of the grid, up and down, by which a trial may differ from the present pair."""
_GOOD_ENOUGH = 0.999
"""Share of good requests with which a search is content: hardly any is left to win."""
_WRITTEN = tuple(
    name
    for name in EngineArrays._fields
    if name not in {"dense_ms", "costs", "noise", "disturbances"}
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pair of each minute, and what they serve; the last one holds until all is served."""

    pairs: tuple[Pair, ...]
    score: EpisodeScore
    trials: int


@dataclass(frozen=True, slots=True)
class ScheduleSearch:
    """The best schedule of one workload and seed."""

    workload: str
    start: Pair
    """The best fixed pair."""
    seed: int
    unit_rps: float
    trace: Path | None
    trials: int = SCHEDULE_TRIALS

    def code(self, code: Code) -> str:
        """Limits on the simulated engine, and the search for them."""
        return code.schedule

    def run(self) -> Schedule:
        """Search."""
        workload = workload_named(self.workload, self.trace)
        return search(Stage(workload, self.seed, self.unit_rps), self.start, self.trials)


class Stage:
    """The pods of a workload under pairs that change by the minute; it can go back in time."""

    def __init__(self, workload: ReportWorkload, seed: int, unit_rps: float) -> None:
        """Put fresh pods at second 0."""
        self.workload = workload
        self.num_minutes = max(1, round(workload.duration_s / _MINUTE_S))
        parts = workload.parts(seed, unit_rps)
        self._pods = [_pod(workload, seed, index, part) for index, part in enumerate(parts)]

    def saved(self) -> list[EngineArrays]:
        """Return the present state of all pods."""
        return [pod.engine.saved() for pod in self._pods]

    def restore(self, saved: Sequence[EngineArrays]) -> None:
        """Go back to a saved state."""
        for pod, arrays in zip(self._pods, saved, strict=True):
            pod.engine.restore(arrays)

    def play_minute(self, minute: int, pair: Pair) -> None:
        """Run a minute, from where the one before it ended; the last with all that is left."""
        is_last = minute + 1 == self.num_minutes
        end_s = self.workload.duration_s + DRAIN_S if is_last else _MINUTE_S * (minute + 1)
        for pod in self._pods:
            if end_s > pod.part.start_s:
                pod.engine.limits = Limits(*pair)
                pod.engine.run_until(end_s - pod.part.start_s)

    def score(self) -> EpisodeScore:
        """Judge what has happened."""
        return score(
            self.workload,
            [pod_run(pod.engine, pod.part.requests, pod.part.start_s) for pod in self._pods],
        )


def search(stage: Stage, start: Pair, trials: int) -> Schedule:
    """Improve minute by minute, until nothing does or the trials are spent."""
    first = stage.saved()
    pairs = [start] * stage.num_minutes
    best = _played(stage, pairs, 0)
    spent, has_improved = 1, True
    while has_improved:
        has_improved = False
        stage.restore(first)
        for minute in range(stage.num_minutes):
            before = stage.saved()
            for pair in _around(stage.workload.setting, pairs[minute]):
                if spent == trials or best.good >= _GOOD_ENOUGH * best.offered:
                    return Schedule(tuple(pairs), best, spent)
                stage.restore(before)
                found = _played(stage, [*pairs[:minute], pair, *pairs[minute + 1 :]], minute)
                spent += 1
                if found.good > best.good:
                    best, pairs[minute], has_improved = found, pair, True
            stage.restore(before)
            stage.play_minute(minute, pairs[minute])
    return Schedule(tuple(pairs), best, spent)


def _played(stage: Stage, pairs: Sequence[Pair], first: int) -> EpisodeScore:
    for minute in range(first, stage.num_minutes):
        stage.play_minute(minute, pairs[minute])
    return stage.score()


def _around(setting: ServingSetting, pair: Pair) -> Iterator[Pair]:
    """Give the pairs of the grid near this one, without itself."""
    pairs = grid(setting)
    batches, budgets = (sorted({each[k] for each in pairs}) for k in (0, 1))
    near = product(_near(batches, pair[0]), _near(budgets, pair[1]))
    return (each for each in near if each != pair and each in pairs)


def _near(values: Sequence[int], value: int) -> Sequence[int]:
    place = values.index(value)
    return values[max(0, place - _REACH) : place + _REACH + 1]


class _Rewindable(SimulatedEngine):
    """A simulated engine that can go back to an earlier moment."""

    def saved(self) -> EngineArrays:
        """Copy the present state."""
        arrays = self._arrays
        return arrays._replace(**{name: getattr(arrays, name).copy() for name in _WRITTEN})

    def restore(self, saved: EngineArrays) -> None:
        """Go back to a saved state, which stays as it is."""
        self._arrays = saved
        self._arrays = self.saved()
        self._totals = self._arrays.totals[0]


@dataclass(frozen=True, slots=True)
class _Pod:
    part: PodPart
    engine: _Rewindable


def _pod(workload: ReportWorkload, seed: int, index: int, part: PodPart) -> _Pod:
    """Make the pod that an episode of fixed limits would have."""
    setting = workload.setting
    capacity, target_ms = setting.capacity, setting.sla.ttft_p99_ms
    engine = _Rewindable(
        setting.hardware,
        part.requests,
        capacity=capacity,
        limits=Limits(capacity.max_batch_size, capacity.max_token_budget),
        pacer=None,
        seed=seed * 101 + index,
        circumstances=Circumstances(
            disturbances=workload.disturbances,
            collapse_at_s=workload.collapse_at_s,
            shed_ttft_ms=None if target_ms is None else SHED_AT * target_ms,
        ),
    )
    return _Pod(part, engine)
