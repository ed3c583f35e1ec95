"""Score: one episode in figures. Every offered request counts from the first on.

A request is good when it ended, its TTFT and mean TPOT are within the SLA, and at most one gap in
a hundred (one, in a shorter request) is over the ITL target. Refused, shed and unfinished
requests are missed. Attainment is the least of three shares: requests within TTFT (missed ones
count against it), requests within TPOT, and gaps within ITL. A paced gap is one engine step, so
gaps are read off the steps in which a request decoded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline_tuner.attainment import is_breach
from tune_report.control_score import ControlScore, control_score
from tune_report.episode import PodRun
from tune_report.workloads import ReportWorkload

_OK = 1
_WINDOW_S = 10.0
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Attainment:
    """Shares that met their target; 1.0 where none is declared."""

    ttft: float
    tpot: float
    itl: float

    @property
    def least(self) -> float:
        """The smallest share, by which the SLA is judged."""
        return min(self.ttft, self.tpot, self.itl)


@dataclass(frozen=True, slots=True)
class EpisodeScore:
    """One episode in figures."""

    offered: int
    good: int
    good_rps: float
    good_tokens_per_s: float
    attainment: Attainment
    settled: Attainment
    """Without the first minute."""
    phases: tuple[Attainment, ...]
    """Attainment of each stationary stretch, without its first minute."""
    violation_s: float
    """In ten-second windows with more misses than chance explains."""
    ttft_p99_ms: float
    tpot_p99_ms: float
    itl_p99_ms: float
    control: ControlScore | None


@dataclass(frozen=True, slots=True)
class _Judged:
    """Requests and gaps of all pods, judged; times are the episode's."""

    arrival_s: Floats
    good: Bools
    fast_ttft: Bools
    fast_tpot: Bools
    output: Floats
    ttft_ms: Floats
    tpot_ms: Floats
    step_s: Floats
    step_rows: Floats
    """Gaps that a step makes."""
    step_late: Bools
    step_ms: Floats


def score(workload: ReportWorkload, pods: Sequence[PodRun]) -> EpisodeScore:
    """Judge one episode."""
    judged = _merged([_judge(workload, pod) for pod in pods])
    duration_s = workload.duration_s
    ends = (*workload.phases[1:], duration_s)
    phases = (
        tuple(
            _attainment(judged, start_s + 60.0, end_s)
            for start_s, end_s in zip(workload.phases, ends, strict=True)
        )
        if workload.phases
        else ()
    )
    return EpisodeScore(
        offered=len(judged.good),
        good=int(judged.good.sum()),
        good_rps=float(judged.good.sum()) / duration_s,
        good_tokens_per_s=float(judged.output[judged.good].sum()) / duration_s,
        attainment=_attainment(judged, 0.0, np.inf),
        settled=_attainment(judged, 60.0, np.inf),
        phases=phases,
        violation_s=_violation_s(judged, workload),
        ttft_p99_ms=_p99(judged.ttft_ms),
        tpot_p99_ms=_p99(judged.tpot_ms),
        itl_p99_ms=_weighted_p99(judged.step_ms, judged.step_rows),
        control=control_score(workload, pods),
    )


def _judge(workload: ReportWorkload, pod: PodRun) -> _Judged:
    arrival_s = pod.requests.arrival_s + pod.start_s
    ended = pod.outcome == _OK
    step_s = pod.step_end_s + pod.start_s
    ttft_limit, tpot_limit, promised = _limits(workload, arrival_s)
    _, _, itl_limit = _limits(workload, step_s)
    late = pod.step_ms > itl_limit
    late_gaps = _late_gaps(pod, late)
    # A gap that no step explains spans a preemption.
    torn = ended & (late_gaps == 0) & (pod.itl_max_ms > promised)
    gaps = np.maximum(pod.requests.output - 1, 0)
    fast_ttft = ended & (pod.ttft_ms <= ttft_limit)
    fast_tpot = ended & ~(pod.tpot_ms > tpot_limit)
    few_late = late_gaps + torn <= np.maximum(1, gaps // 100)
    return _Judged(
        arrival_s=arrival_s,
        good=fast_ttft & fast_tpot & few_late,
        fast_ttft=fast_ttft,
        fast_tpot=fast_tpot,
        output=pod.requests.output.astype(np.float64),
        ttft_ms=pod.ttft_ms[ended],
        tpot_ms=pod.tpot_ms[ended & (pod.requests.output > 1)],
        step_s=np.concatenate((step_s, pod.finished_s[torn] + pod.start_s)),
        step_rows=np.concatenate((pod.step_decode.astype(np.float64), np.ones(int(torn.sum())))),
        step_late=np.concatenate((late, np.ones(int(torn.sum()), dtype=np.bool_))),
        step_ms=np.concatenate((pod.step_ms, pod.itl_max_ms[torn])),
    )


def _late_gaps(pod: PodRun, late: Bools) -> npt.NDArray[np.int64]:
    """Late steps between a request's first token and its last."""
    before = np.concatenate(([0], np.cumsum(late)))
    first_s = pod.requests.arrival_s + pod.ttft_ms / 1e3
    # Half a microsecond: a token's time is its step's end, added up in another order.
    begin = np.searchsorted(pod.step_end_s, np.nan_to_num(first_s) + 5e-7, side="right")
    end = np.searchsorted(pod.step_end_s, np.nan_to_num(pod.finished_s) + 5e-7, side="right")
    return np.asarray(before[np.maximum(end, begin)] - before[begin], dtype=np.int64)


def _limits(workload: ReportWorkload, at_s: Floats) -> tuple[Floats, Floats, Floats]:
    """TTFT, TPOT and ITL targets that hold at each time; infinite where none is declared."""
    starts = np.array([0.0, *(start_s for start_s, _ in workload.sla_changes)])
    slas = [workload.setting.sla, *(sla for _, sla in workload.sla_changes)]
    place = np.maximum(np.searchsorted(starts, at_s, side="right") - 1, 0)
    columns = (
        [sla.ttft_p99_ms or np.inf for sla in slas],
        [sla.tpot_p99_ms or np.inf for sla in slas],
        [sla.itl_p99_ms or np.inf for sla in slas],
    )
    ttft, tpot, itl = (np.array(column)[place] for column in columns)
    return ttft, tpot, itl


def _merged(parts: Sequence[_Judged]) -> _Judged:
    names = _Judged.__dataclass_fields__
    return _Judged(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


def _attainment(judged: _Judged, start_s: float, end_s: float) -> Attainment:
    chosen = (judged.arrival_s >= start_s) & (judged.arrival_s < end_s)
    steps = (judged.step_s >= start_s) & (judged.step_s < end_s)
    rows = judged.step_rows[steps]
    late = float(rows[judged.step_late[steps]].sum())
    return Attainment(
        ttft=float(judged.fast_ttft[chosen].mean()) if chosen.any() else 1.0,
        tpot=float(judged.fast_tpot[chosen].mean()) if chosen.any() else 1.0,
        itl=1.0 - late / float(rows.sum()) if rows.sum() else 1.0,
    )


def _violation_s(judged: _Judged, workload: ReportWorkload) -> float:
    edges = np.arange(0.0, workload.duration_s + _WINDOW_S, _WINDOW_S)
    objective = workload.setting.sla.objective
    late = ~(judged.fast_ttft & judged.fast_tpot)
    offered, _ = np.histogram(judged.arrival_s, edges)
    missed, _ = np.histogram(judged.arrival_s[late], edges)
    # Gaps of one step miss together: they weigh as one.
    decoding = judged.step_rows > 0
    steps, _ = np.histogram(judged.step_s[decoding], edges)
    slow, _ = np.histogram(judged.step_s[decoding & judged.step_late], edges)
    breaches = [
        is_breach(int(n), int(m), objective) or is_breach(int(s), int(k), objective)
        for n, m, s, k in zip(offered, missed, steps, slow, strict=True)
    ]
    return _WINDOW_S * sum(breaches)


def _p99(values: Floats) -> float:
    return float(np.percentile(values, 99, method="higher")) if len(values) else float("nan")


def _weighted_p99(values: Floats, weights: Floats) -> float:
    if not weights.sum():
        return float("nan")
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    place = int(np.searchsorted(total, 0.99 * total[-1]))
    return float(values[order][place])
