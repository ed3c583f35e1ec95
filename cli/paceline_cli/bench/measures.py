"""What a run measured at the client: the one shape that every report and check reads. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from paceline_cli.bench.intervals import (
    Draws,
    Estimate,
    draws,
    least_count,
    least_count_of_bound,
)
from paceline_cli.bench.rates import Rates
from paceline_cli.traffic.client_span import is_met, span, whole_ms
from paceline_cli.traffic.record import ClientRecord
from paceline_tuner.service_spec import SLA

SHARES: Final = (0.5, 0.9, 0.99, 0.999)
NAMES: Final = ("TTFT", "TPOT", "ITL", "E2E")
NOTHING_DECLARED: Final = SLA()


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of `count` values in milliseconds; infinite where too many had no answer."""

    share: float
    ms: Estimate
    count: int
    has_bound: bool
    """Enough values lie above for an upper bound; else it may be any number."""

    @property
    def is_max(self) -> bool:
        """Too few values for this rank: it is their maximum."""
        return self.count < least_count(self.share)


@dataclass(frozen=True, slots=True)
class Latency:
    """One kind of latency over all offered requests."""

    name: str
    count: int
    mean_ms: Estimate
    """Of the values that are finite: of the requests that were answered."""
    quantiles: tuple[Quantile, ...]
    """Of all; a request that was not answered counts as infinitely late."""
    max_ms: float | None

    def at(self, share: float) -> Quantile:
        """Return the quantile of that share, one of SHARES."""
        return next(each for each in self.quantiles if each.share == share)


@dataclass(frozen=True, slots=True)
class Measures:
    """What the client saw in one stretch of time. Throughput and latency stand apart."""

    seconds: float
    """From the first arrival that counts to the last, or to the end of the stretch."""
    offered: int
    outcomes: dict[str, int]
    """Offered requests by how they ended."""
    cancelled: int
    """Left as planned: neither offered nor missed."""
    attainment: Estimate
    """Share of all offered requests, or of gaps where it is less, within the targets."""
    goodput_rps: Estimate
    """Requests a second that met every target, their gaps among them."""
    goodput_tokens_per_s: Estimate
    """Output tokens a second of these requests."""
    requests_per_s: Estimate
    """Answered requests a second."""
    output_tokens_per_s: Estimate
    """Tokens that arrived in the stretch, of whichever request, a second."""
    prompt_tokens: Estimate
    """Mean of the answered requests."""
    output_tokens: Estimate
    ttft: Latency
    tpot: Latency
    itl: Latency
    e2e: Latency

    @property
    def unanswered(self) -> int:
        """Refused, failed or without an end in time."""
        return self.offered - self.outcomes.get("ok", 0)

    @property
    def latencies(self) -> tuple[Latency, ...]:
        """All four, in the order of NAMES."""
        return self.ttft, self.tpot, self.itl, self.e2e


def measure(
    records: Sequence[ClientRecord],
    start_at: float,
    end_at: float,
    sla: SLA = NOTHING_DECLARED,
    *,
    is_closed_loop: bool = False,
) -> Measures:
    """Read what was due in [start_at, end_at), client's monotonic seconds, warm-up before it."""
    ordered = sorted(records, key=lambda record: record.planned_at)
    seen = span(ordered, start_at, end_at)
    due, seconds = seen.due, seen.seconds
    drawn = draws(len(due))
    good = [_is_good(sla, record) for record in due]
    has_sla = sla != NOTHING_DECLARED
    nothing = Estimate(None)
    is_answered = [record.outcome == "ok" for record in due]
    answered = [float(is_one) for is_one in is_answered]
    tokens = [float(record.output_tokens) for record in due]
    output_tokens = drawn.ratio(
        [each * is_one for each, is_one in zip(tokens, answered, strict=True)], answered
    )
    lasted_s = [record.finished_at - record.planned_at for record in due]
    rates = Rates(drawn, seconds, lasted_s if is_closed_loop else None)
    return Measures(
        seconds=seconds,
        offered=len(due),
        outcomes=dict(Counter(record.outcome for record in due)),
        cancelled=seen.num_cancelled,
        attainment=_attainment(sla, due, drawn) if has_sla else nothing,
        goodput_rps=rates.of(good, [1.0] * len(due), usual=1.0) if has_sla else nothing,
        goodput_tokens_per_s=rates.of(good, tokens, usual=output_tokens.value)
        if has_sla
        else nothing,
        requests_per_s=rates.of(is_answered, [1.0] * len(due), usual=1.0),
        output_tokens_per_s=_tokens_per_s(seen.output_tokens / seconds, tokens, rates),
        prompt_tokens=drawn.ratio(
            [record.prompt_tokens * (record.outcome == "ok") for record in due], answered
        ),
        output_tokens=output_tokens,
        ttft=latency_of("TTFT", [[_first_ms(record)] for record in due], drawn),
        tpot=latency_of(
            "TPOT", [[ms] if (ms := record.tpot_ms) is not None else [] for record in due], drawn
        ),
        itl=latency_of("ITL", [record.itls_ms for record in due], drawn),
        e2e=latency_of("E2E", [[whole_ms(record)] for record in due], drawn),
    )


def label(share: float) -> str:
    """Name a quantile: `p50`, `p99.9`."""
    return f"p{share * 100:g}"


def latency_of(name: str, by_request: Sequence[Sequence[float]], drawn: Draws) -> Latency:
    """Summarize milliseconds, a request's own values together, of requests in order."""
    values = [ms for each in by_request for ms in each]
    owners = [place for place, each in enumerate(by_request) for _ in each]
    finite = [[ms for ms in each if math.isfinite(ms)] for each in by_request]
    return Latency(
        name=name,
        count=len(values),
        mean_ms=drawn.ratio([sum(each) for each in finite], [float(len(each)) for each in finite]),
        quantiles=tuple(
            Quantile(share, estimate, len(values), _has_bound(share, estimate, values))
            for share, estimate in zip(SHARES, drawn.quantiles(values, owners, SHARES), strict=True)
        ),
        max_ms=max(values, default=None),
    )


def _has_bound(share: float, estimate: Estimate, values: Sequence[float]) -> bool:
    """Whether the upper end is more than the maximum of what happened to be there."""
    if estimate.high is None or len(values) < least_count_of_bound(share):
        return False
    return estimate.high < max(values) or estimate.high == estimate.low


def _attainment(sla: SLA, due: Sequence[ClientRecord], drawn: Draws) -> Estimate:
    """The lesser share, of requests or of gaps, with its own interval."""
    found = [drawn.share([is_met(sla, record) for record in due])]
    if sla.itl_p99_ms is not None:
        target = sla.itl_p99_ms
        within = [float(np.sum(np.asarray(record.itls_ms) <= target)) for record in due]
        found.append(drawn.ratio(within, [float(len(record.itls_ms)) for record in due]))
    told = [each for each in found if each.value is not None]
    return min(told, key=lambda each: each.value or 0.0, default=Estimate(None))


def _tokens_per_s(value: float, tokens: Sequence[float], rates: Rates) -> Estimate:
    """Tokens by when they came; the interval is that of the requests' own tokens."""
    spread = rates.of([each > 0 for each in tokens], tokens)
    if not spread.value or spread.low is None or spread.high is None:
        return Estimate(value)
    return Estimate(value, value * spread.low / spread.value, value * spread.high / spread.value)


def _is_good(sla: SLA, record: ClientRecord) -> bool:
    """Whether it met its targets, and the objective's share of its gaps theirs."""
    if not is_met(sla, record):
        return False
    if sla.itl_p99_ms is None or not record.itls_ms:
        return True
    within = sum(ms <= sla.itl_p99_ms for ms in record.itls_ms)
    return within >= sla.objective * len(record.itls_ms)


def _first_ms(record: ClientRecord) -> float:
    return math.inf if record.ttft_ms is None else record.ttft_ms
