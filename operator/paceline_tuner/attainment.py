"""Attainment: p99s, misses and whether the SLA held. Every offered request counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paceline_tuner.latency_sketch import LatencySketch
from paceline_tuner.records import Column, Mask, column, quantile, since
from paceline_tuner.service_report import MeasuredClass, MeasuredLatency, Quantiles, Verdict
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord, Step
from paceline_tuner.window import Evidence

MIN_SAMPLES = 20
_CONFIDENCE = 0.95
_NEWEST = 200  # steps
_SAMPLE = 500


@dataclass(frozen=True, slots=True)
class Counts:
    """Trials and misses of the two kinds of target: per request and per gap."""

    requests: int
    missed_requests: int
    gaps: int = 0
    missed_gaps: int = 0
    rows: float = 1.0
    """Gaps that one step makes on average; they miss together."""

    @property
    def attainment(self) -> float | None:
        """The lower of the two shares that met their targets; None where nothing was offered."""
        shares = []
        if self.requests:
            shares.append(1 - self.missed_requests / self.requests)
        if self.gaps:
            shares.append(1 - self.missed_gaps / self.gaps)
        return min(shares, default=None)

    def __add__(self, other: "Counts") -> "Counts":
        """Add two pods or two periods up."""
        return Counts(
            self.requests + other.requests,
            self.missed_requests + other.missed_requests,
            self.gaps + other.gaps,
            self.missed_gaps + other.missed_gaps,
            max(self.rows, other.rows),
        )


NOTHING = Counts(0, 0)


def count(
    sla: SLA, requests: Sequence[RequestRecord], gaps: LatencySketch, rows: float = 1.0
) -> Counts:
    """Count misses. A client that left is neither offered nor missed unless it saw a miss."""
    is_missed = are_late(sla, requests) | (column(requests, "is_as_wanted") == 0)
    is_offered = is_missed | (column(requests, "is_ok") > 0)
    weights = column(requests, "weight")
    offered, missed = int(weights[is_offered].sum()), int(weights[is_missed].sum())
    if sla.itl_p99_ms is None:
        return Counts(offered, missed)
    return Counts(offered, missed, gaps.count, gaps.over(sla.itl_p99_ms), rows)


def are_late(sla: SLA, requests: Sequence[RequestRecord]) -> Mask:
    """Return `is_late` for many requests at once."""
    late: Mask = column(requests, "ttft_ms") > _ttft_targets_ms(sla, requests)
    late |= column(requests, "tpot_ms") > _limit(sla.tpot_p99_ms)
    if sla.e2e_p99_ms is not None:
        late |= (_lasted_ms(requests) > sla.e2e_p99_ms) & (column(requests, "is_as_wanted") > 0)
    return late


def _lasted_ms(requests: Sequence[RequestRecord]) -> Column:
    """Reckon arrival to end."""
    return (column(requests, "finished_at") - column(requests, "arrived_at")) * 1e3


def is_late(sla: SLA, record: RequestRecord) -> bool:
    """The request missed a per-request target."""
    return (
        _is_over(record.ttft_ms, sla.ttft_ms(record.prompt_tokens))
        or _is_over(record.tpot_ms, sla.tpot_p99_ms)
        or (sla.e2e_p99_ms is not None and _is_over(record.e2e_ms, sla.e2e_p99_ms))
    )


def observe(sla: SLA, evidence: Evidence) -> tuple[MeasuredLatency, Counts]:
    """Measure one pod over its window."""
    gaps = evidence.gaps()
    counts = count(sla, evidence.requests, gaps, mean_rows(evidence.steps))
    high = _quantiles(sla, evidence.requests, gaps, 0.99)
    is_own = sla.objective != high.share
    observed = MeasuredLatency(
        ttft_p99_ms=high.ttft_ms,
        tpot_p99_ms=high.tpot_ms,
        itl_p99_ms=high.itl_ms,
        samples=counts.requests,
        attainment=counts.attainment,
        e2e_p99_ms=high.e2e_ms,
        at_objective=_quantiles(sla, evidence.requests, gaps, sla.objective) if is_own else None,
        by_prompt_tokens=by_prompt_tokens(sla, evidence.requests),
    )
    return observed, counts


def by_prompt_tokens(sla: SLA, requests: Sequence[RequestRecord]) -> tuple[MeasuredClass, ...]:
    """Measure each class of prompts by its own target; nothing where all have one.

    Whoever got no first token missed it, but for clients that left before it was due.
    """
    if not sla.ttft_by_prompt_tokens:
        return ()
    ttft_ms, weights = column(requests, "ttft_ms"), column(requests, "weight")
    has_none = np.isnan(ttft_ms)
    is_missed = ttft_ms > _ttft_targets_ms(sla, requests)
    is_missed |= has_none & (column(requests, "is_as_wanted") == 0)
    has_left = (column(requests, "is_as_wanted") > 0) & (column(requests, "is_ok") == 0)
    is_offered, places = is_missed | ~has_left, class_places(sla, requests)
    classes = zip(sla.shortest_prompts, sla.ttft_by_prompt_tokens, strict=True)
    measured = []
    for place, (least, each) in enumerate(classes):
        mine = places == place
        measured.append(
            MeasuredClass(
                least=least,
                up_to=each.up_to,
                target_ms=each.ttft_p99_ms,
                ttft_ms=quantile(ttft_ms[mine], weights[mine], sla.objective),
                requests=int(weights[mine & is_offered].sum()),
                missed=int(weights[mine & is_missed].sum()),
                verdict="Unknown",
            )
        )
    return _judged(measured, sla.objective)


def _ttft_targets_ms(sla: SLA, requests: Sequence[RequestRecord]) -> Column | float:
    """Give the target of each request's first token; infinite where none is declared."""
    if not sla.ttft_by_prompt_tokens:
        return _limit(sla.ttft_p99_ms)
    targets = np.array([each.ttft_p99_ms for each in sla.ttft_by_prompt_tokens])
    found: Column = targets[class_places(sla, requests)]
    return found


def class_places(sla: SLA, requests: Sequence[RequestRecord]) -> npt.NDArray[np.int64]:
    """Give the place of each request's class of prompts, as `SLA.class_of` has it."""
    prompts = column(requests, "prompt_tokens")
    return np.maximum(np.searchsorted(sla.shortest_prompts, prompts, side="right") - 1, 0)


def _judged(classes: Sequence[MeasuredClass], objective: float) -> tuple[MeasuredClass, ...]:
    """Judge each class; the chance of any false alarm is that of a single test (Bonferroni)."""
    return tuple(replace(each, verdict=_verdict_of(each, objective, classes)) for each in classes)


def _verdict_of(one: MeasuredClass, objective: float, classes: Sequence[MeasuredClass]) -> Verdict:
    if one.requests == 0:
        return "Idle"
    if is_breach(one.requests, one.missed, objective, looks=len(classes)):
        return "Violating"
    attainment = one.attainment
    is_met = one.requests >= MIN_SAMPLES and attainment is not None and attainment >= objective
    return "Meeting" if is_met else "Unknown"


def _quantiles(
    sla: SLA, requests: Sequence[RequestRecord], gaps: LatencySketch, share: float
) -> Quantiles:
    weights, e2e_ms = column(requests, "weight"), None
    if sla.e2e_p99_ms is not None:
        is_ok = column(requests, "is_ok") > 0
        e2e_ms = quantile(_lasted_ms(requests)[is_ok], weights[is_ok], share)
    return Quantiles(
        share=share,
        ttft_ms=quantile(column(requests, "ttft_ms"), weights, share),
        tpot_ms=quantile(column(requests, "tpot_ms"), weights, share),
        itl_ms=gaps.quantile(share),
        e2e_ms=e2e_ms,
    )


def pace(sla: SLA, evidence: Evidence, begin: float) -> Counts:
    """Count what steps alone cause since a change: slow gaps, and requests with a slow mean."""
    offered = slow = 0
    if sla.tpot_p99_ms is not None:
        ended = since(evidence.requests, "finished_at", begin)
        tpot_ms, weights = column(ended, "tpot_ms"), column(ended, "weight")
        is_new = column(ended, "arrived_at") >= begin
        offered = int(weights[is_new & ~np.isnan(tpot_ms)].sum())
        slow = int(weights[is_new & (tpot_ms > sla.tpot_p99_ms)].sum())
    if sla.itl_p99_ms is None:
        return Counts(offered, slow)
    gaps = evidence.gaps(begin)
    return Counts(offered, slow, gaps.count, gaps.over(sla.itl_p99_ms), mean_rows(evidence.steps))


def combined(
    measured: Sequence[MeasuredLatency], counts: Counts, objective: float
) -> MeasuredLatency:
    """Measure several pods together: counts are exact, a p99 is that of the worst pod."""
    own = [latency.at_objective for latency in measured if latency.at_objective is not None]
    return MeasuredLatency(
        ttft_p99_ms=_worst([latency.ttft_p99_ms for latency in measured]),
        tpot_p99_ms=_worst([latency.tpot_p99_ms for latency in measured]),
        itl_p99_ms=_worst([latency.itl_p99_ms for latency in measured]),
        samples=counts.requests,
        attainment=counts.attainment,
        e2e_p99_ms=_worst([latency.e2e_p99_ms for latency in measured]),
        at_objective=_worst_of(own) if own else None,
        by_prompt_tokens=_combined_classes([each.by_prompt_tokens for each in measured], objective),
    )


def _combined_classes(
    pods: Sequence[tuple[MeasuredClass, ...]], objective: float
) -> tuple[MeasuredClass, ...]:
    """Add the classes of all pods up. All pods of a service are judged by one SLA."""
    joined = [
        replace(
            alike[0],
            ttft_ms=_worst([each.ttft_ms for each in alike]),
            requests=sum(each.requests for each in alike),
            missed=sum(each.missed for each in alike),
        )
        for alike in zip(*[classes for classes in pods if classes], strict=True)
    ]
    return _judged(joined, objective)


def _worst_of(measured: Sequence[Quantiles]) -> Quantiles:
    return Quantiles(
        share=measured[0].share,
        ttft_ms=_worst([each.ttft_ms for each in measured]),
        tpot_ms=_worst([each.tpot_ms for each in measured]),
        itl_ms=_worst([each.itl_ms for each in measured]),
        e2e_ms=_worst([each.e2e_ms for each in measured]),
    )


def verdict(counts: Counts, objective: float, classes: Sequence[MeasuredClass] = ()) -> Verdict:
    """Judge: Meeting at the objective, Violating when misses are too many to be chance.

    Each class of prompts is promised the objective, however few of the requests it has.
    """
    if counts.requests == 0 and counts.gaps == 0:
        return "Idle"
    if any(each.verdict == "Violating" for each in classes):
        return "Violating"
    attainment = counts.attainment
    steps, missed_steps = int(counts.gaps / counts.rows), int(counts.missed_gaps / counts.rows)
    if is_breach(counts.requests, counts.missed_requests, objective) or is_breach(
        steps, missed_steps, objective
    ):
        return "Violating"
    shares = [each.attainment for each in classes if each.attainment is not None]
    is_short = any(share < objective for share in shares)
    is_met = attainment is not None and attainment >= objective and not is_short
    if counts.requests >= MIN_SAMPLES and is_met:
        return "Meeting"
    return "Unknown"


def is_breach(trials: int, misses: int, objective: float, *, looks: int = 1) -> bool:
    """Whether chance alone gives so many misses in under 5 % of windows.

    Of `looks` that are taken at once, chance speaks in 5 % of windows in all (Bonferroni).
    """
    chance = 1 - objective
    if trials == 0 or misses / trials <= chance:
        return False
    if misses > trials * chance + 6 * math.sqrt(trials * chance) + 6:
        return True  # six deviations: no need to sum thousands of terms
    return _at_least(misses, trials, chance) < (1 - _CONFIDENCE) / looks


def is_certain(trials: float, misses: float, objective: float) -> bool:
    """Whether a share just below the objective gives so few misses in under 5 % of windows."""
    n, k = math.floor(trials), math.ceil(misses)
    if k > n * (1 - objective):
        return False
    return 1 - _at_least(k + 1, n, 1 - objective) < 1 - _CONFIDENCE


@lru_cache(maxsize=4096)  # one decision asks for the same several times
def _at_least(k: int, n: int, p: float) -> float:
    """Sum P(X >= k) of a binomial exactly, in logarithms."""
    if k <= 0:
        return 1.0
    if k > n or p <= 0:
        return 0.0
    below = 0.0
    log_p, log_q = math.log(p), math.log1p(-p)
    for i in range(k):
        ways = math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1)
        below += math.exp(ways + i * log_p + (n - i) * log_q)
    return max(0.0, 1.0 - below)


def mean_rows(steps: Sequence[Step]) -> float:
    """Average the decode sequences of steps that have any, by an even sample."""
    rows = column(steps, "decode")[:: 1 + len(steps) // _SAMPLE]
    num = int(np.count_nonzero(rows))
    return float(rows.sum()) / num if num else 1.0


def large_step_tokens(steps: Sequence[Step]) -> int:
    """Find the tokens that one in twenty steps with a decode reaches; 0 without such steps."""
    stride = 1 + len(steps) // _SAMPLE
    rows = column(steps, "decode")[::stride]
    tokens = np.sort((rows + column(steps, "prefill")[::stride])[rows > 0])
    return int(tokens[int(0.95 * (len(tokens) - 1))]) if len(tokens) else 0


def quick_step_ms(steps: Sequence[Step]) -> float:
    """Find the time within which one in ten of the newest steps with a decode ran."""
    after = column(steps, "weight")[::-1].cumsum()[::-1]  # and the step itself
    is_newest = after - column(steps, "weight") < _NEWEST
    walls = np.sort(column(steps, "wall_ms")[is_newest & (column(steps, "decode") > 0)])
    return float(walls[len(walls) // 10]) if len(walls) else math.inf


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _limit(target_ms: float | None) -> float:
    return math.inf if target_ms is None else target_ms


def _is_over(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value > target
