"""What a run of the demo measured, and the verdict over it. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_operator.traffic.record import Record, percentile
from paceline_operator.tuning.model import SLA, Change, Observed

_MIN_REQUESTS = 20
_MIN_GAPS = 200
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sidecar and the tuner said at one time."""

    at: float
    """Client's monotonic seconds."""
    batch_size: int | None
    token_budget: int | None
    step_target_ms: float | None
    observed: Observed


@dataclass(frozen=True, slots=True)
class Span:
    """The client's measurements of one stretch of time, milliseconds."""

    seconds: float
    offered: int
    missed: int
    """Refused, failed or timed out."""
    output_tokens: int
    ttft_ms: tuple[float, ...]
    """Of every offered request; one that got no answer waits forever."""
    tpot_ms: tuple[float, ...]
    itl_ms: tuple[float, ...]

    def observed(self, sla: SLA) -> Observed:
        """The span as the tuner's own words have it."""
        met = self.offered and self._met(sla) / self.offered
        return Observed(
            ttft_p99_ms=percentile(self.ttft_ms, _SHARE),
            tpot_p99_ms=percentile(self.tpot_ms, _SHARE),
            itl_p99_ms=percentile(self.itl_ms, _SHARE),
            samples=self.offered,
            attainment=met if self.offered else None,
        )

    def _met(self, sla: SLA) -> int:
        target = math.inf if sla.ttft_p99_ms is None else sla.ttft_p99_ms
        return sum(value <= target for value in self.ttft_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """One whole run of the demo."""

    name: str
    model: str
    machine: str
    sla: SLA
    rate_rps: float
    measured_capacity_rps: float
    cv: float
    start_at: float
    """When traffic began: the zero of every plot."""
    border_at: float
    """When the tuner was let loose."""
    judged_from: float
    end_at: float
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    changes: tuple[Change, ...]

    def before(self) -> Span:
        """Under the declared limits."""
        return span(self.records, self.start_at, self.border_at)

    def after(self) -> Span:
        """The last stretch, which the verdict is about."""
        return span(self.records, self.judged_from, self.end_at)

    def last_observed(self) -> Observed | None:
        """The sidecar's own measurement at the end."""
        return self.samples[-1].observed if self.samples else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the SLA holds at the end, in a sentence."""

    holds: bool
    sentence: str


def span(records: Sequence[Record], start_at: float, end_at: float) -> Span:
    """Cut a stretch out of a run: requests by when they were due, gaps by when they ended."""
    due = [record for record in records if start_at <= record.planned_at < end_at]
    return Span(
        seconds=end_at - start_at,
        offered=len(due),
        missed=sum(record.outcome != "ok" for record in due),
        output_tokens=sum(start_at <= at < end_at for record in records for at in record.token_ats),
        ttft_ms=tuple(math.inf if (ms := record.ttft_ms) is None else ms for record in due),
        tpot_ms=tuple(ms for record in due if (ms := record.tpot_ms) is not None),
        itl_ms=tuple(
            ms
            for record in records
            for at, ms in zip(record.token_ats[1:], record.itls_ms, strict=True)
            if start_at <= at < end_at
        ),
    )


def judge(sla: SLA, client: Span, sidecar: Observed | None) -> Verdict:
    """The SLA holds when client and sidecar both saw every target met, on enough samples."""
    if client.offered < _MIN_REQUESTS or len(client.itl_ms) < _MIN_GAPS:
        return Verdict(
            holds=False,
            sentence=(
                f"Not shown: {client.offered} requests and {len(client.itl_ms)} gaps at the end;"
                f" {_MIN_REQUESTS} and {_MIN_GAPS} are needed for a p99."
            ),
        )
    seen = client.observed(sla)
    misses = [f"client: {text}" for text in missed_targets(sla, seen)]
    if sidecar is None:
        misses.append("sidecar: no measurement")
    else:
        misses += [f"sidecar: {text}" for text in missed_targets(sla, sidecar)]
    if misses:
        return Verdict(holds=False, sentence=f"The SLA does not hold: {'; '.join(misses)}.")
    return Verdict(holds=True, sentence=f"The SLA holds: {', '.join(_met_targets(sla, seen))}.")


def missed_targets(sla: SLA, seen: Observed) -> list[str]:
    """Each target that was not met, or not measured."""
    return [
        f"{name} p99 {'was not measured' if value is None else f'{value:,.0f} ms'},"
        f" target {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is None or value > target
    ]


def targets(sla: SLA, seen: Observed) -> list[tuple[str, float, float | None]]:
    """Name, declared target and measured p99 of each declared target."""
    rows = [
        ("TTFT", sla.ttft_p99_ms, seen.ttft_p99_ms),
        ("TPOT", sla.tpot_p99_ms, seen.tpot_p99_ms),
        ("ITL", sla.itl_p99_ms, seen.itl_p99_ms),
    ]
    return [(name, target, value) for name, target, value in rows if target is not None]


def rolling_p99(
    points: Sequence[tuple[float, float]],
    *,
    start: float,
    end: float,
    window_s: float,
    step_s: float,
) -> list[tuple[float, float | None]]:
    """p99 of the values of the last `window_s`, every `step_s`; None where there are none."""
    series = []
    count = int((end - start) / step_s + 1e-9)
    for index in range(1, count + 1):
        now = start + index * step_s
        series.append(
            (now, percentile((value for at, value in points if now - window_s < at <= now), _SHARE))
        )
    return series


def _met_targets(sla: SLA, seen: Observed) -> list[str]:
    return [
        f"{name} p99 {value:,.0f} ms of {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is not None
    ]
