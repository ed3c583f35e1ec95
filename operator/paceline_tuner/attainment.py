"""Attainment: p99s, misses and whether the SLA held. Every offered request counts."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from paceline_tuner.latency_sketch import LatencySketch, weighted_quantile
from paceline_tuner.service_report import MeasuredClass, MeasuredLatency, Quantiles, Verdict
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord, Step
from paceline_tuner.window import Evidence

MIN_SAMPLES = 20
_CONFIDENCE = 0.95
_NEWEST = 200  # steps
_SAMPLE = 500
_AS_WANTED = frozenset({"ok", "cancelled"})  # by the client


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
    sla: SLA, requests: Iterable[RequestRecord], gaps: LatencySketch, rows: float = 1.0
) -> Counts:
    """Count misses. A client that left is neither offered nor missed unless it saw a miss."""
    ttft_ms, tpot_ms = _limit(sla.ttft_p99_ms), _limit(sla.tpot_p99_ms)
    has_classes = bool(sla.ttft_by_prompt_tokens)
    ends_late = sla.e2e_p99_ms is not None
    offered = missed = 0
    for record in requests:
        if has_classes:
            ttft_ms = _limit(sla.ttft_ms(record.prompt_tokens))
        late = (record.ttft_ms or 0.0) > ttft_ms or (record.tpot_ms or 0.0) > tpot_ms
        late = late or (ends_late and _is_over(record.e2e_ms, sla.e2e_p99_ms))
        if late or record.outcome not in _AS_WANTED:
            missed += record.weight
            offered += record.weight
        elif record.outcome == "ok":
            offered += record.weight
    if sla.itl_p99_ms is None:
        return Counts(offered, missed)
    return Counts(offered, missed, gaps.count, gaps.over(sla.itl_p99_ms), rows)


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


def by_prompt_tokens(sla: SLA, requests: Iterable[RequestRecord]) -> tuple[MeasuredClass, ...]:
    """Measure each class of prompts by its own target.

    Whoever got no first token missed it, but for clients that left before it was due.
    """
    if not sla.ttft_by_prompt_tokens:
        return ()
    found: list[list[RequestRecord]] = [[] for _ in sla.ttft_by_prompt_tokens]
    for record in requests:
        found[sla.class_of(record.prompt_tokens)].append(record)
    measured = []
    each_one = zip(sla.shortest_prompts, sla.ttft_by_prompt_tokens, found, strict=True)
    for least, each, records in each_one:
        late = [r for r in records if _has_missed(r, each.ttft_p99_ms)]
        offered = sum([r.weight for r in records if r.outcome != "cancelled"])
        offered += sum([r.weight for r in late if r.outcome == "cancelled"])
        measured.append(
            MeasuredClass(
                least=least,
                up_to=each.up_to,
                target_ms=each.ttft_p99_ms,
                ttft_ms=_quantile([(r.ttft_ms, r.weight) for r in records], sla.objective),
                requests=offered,
                missed=sum([r.weight for r in late]),
                verdict="Unknown",
            )
        )
    return _judged(measured, sla.objective)


def _has_missed(record: RequestRecord, target_ms: float) -> bool:
    if record.ttft_ms is None:
        return record.outcome not in _AS_WANTED
    return record.ttft_ms > target_ms


def _judged(classes: Sequence[MeasuredClass], objective: float) -> tuple[MeasuredClass, ...]:
    """Judge each class as a service is; together they cry wolf no more often than one."""
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
    ended = [r for r in requests if r.outcome == "ok"] if sla.e2e_p99_ms is not None else []
    return Quantiles(
        share=share,
        ttft_ms=_quantile([(r.ttft_ms, r.weight) for r in requests], share),
        tpot_ms=_quantile([(r.tpot_ms, r.weight) for r in requests], share),
        itl_ms=gaps.quantile(share),
        e2e_ms=_quantile([(r.e2e_ms, r.weight) for r in ended], share),
    )


def _quantile(values: Sequence[tuple[float | None, int]], share: float) -> float | None:
    known = [(value, weight) for value, weight in values if value is not None]
    return weighted_quantile(known, share)


def pace(sla: SLA, evidence: Evidence, since: float) -> Counts:
    """Count what steps alone cause since a change: slow gaps, and requests with a slow mean."""
    finished = [r for r in evidence.finished(since) if r.tpot_ms is not None]
    slow = sum(r.weight for r in finished if _is_over(r.tpot_ms, sla.tpot_p99_ms))
    offered = sum(r.weight for r in finished) if sla.tpot_p99_ms is not None else 0
    if sla.itl_p99_ms is None:
        return Counts(offered, slow)
    gaps = evidence.gaps(since)
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
    rows = [step.decode for step in steps[:: 1 + len(steps) // _SAMPLE] if step.decode]
    return sum(rows) / len(rows) if rows else 1.0


def large_step_tokens(steps: Sequence[Step]) -> int:
    """Find the tokens that one in twenty steps with a decode reaches; 0 without such steps."""
    even = steps[:: 1 + len(steps) // _SAMPLE]
    tokens = sorted([step.decode + step.prefill for step in even if step.decode])
    return tokens[int(0.95 * (len(tokens) - 1))] if tokens else 0


def quick_step_ms(steps: Sequence[Step]) -> float:
    """Find the time within which one in ten of the newest steps with a decode ran."""
    walls, left = [], _NEWEST
    for step in reversed(steps):
        if left <= 0:
            break
        left -= step.weight
        if step.decode:
            walls.append(step.wall_ms)
    return sorted(walls)[len(walls) // 10] if walls else math.inf


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _limit(target_ms: float | None) -> float:
    return math.inf if target_ms is None else target_ms


def _is_over(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value > target
