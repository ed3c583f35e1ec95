"""What a run of the demo measured, and the verdict over it. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_cli.traffic.calibration import Speed
from paceline_cli.traffic.record import Record, percentile
from paceline_tuner.service_report import LimitsChange, MeasuredLatency
from paceline_tuner.service_spec import SLA

_MIN_REQUESTS = 12
_MIN_GAPS = 300
_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Sample:
    """What the sidecar and the tuner said at one time."""

    at: float
    """Client's monotonic seconds."""
    batch_size: int | None
    token_budget: int | None
    step_target_ms: float | None
    observed: MeasuredLatency


@dataclass(frozen=True, slots=True)
class Span:
    """The client's measurements of one stretch of time."""

    seconds: float
    due: tuple[Record, ...]
    """Offered requests: those that were due in it."""
    itl_ms: tuple[float, ...]
    """Every gap that ended in it."""
    output_tokens: int

    @property
    def offered(self) -> int:
        """Requests due."""
        return len(self.due)

    @property
    def missed(self) -> int:
        """Refused, failed or timed out."""
        return sum(record.outcome != "ok" for record in self.due)

    @property
    def ttft_ms(self) -> tuple[float, ...]:
        """Of every offered request; one that got no answer waits forever."""
        return tuple(_first_token_ms(record) for record in self.due)

    @property
    def tpot_ms(self) -> tuple[float, ...]:
        """Of every request with two tokens."""
        return tuple(ms for record in self.due if (ms := record.tpot_ms) is not None)

    def observed(self, sla: SLA) -> MeasuredLatency:
        """The span in the tuner's own words."""
        return MeasuredLatency(
            ttft_p99_ms=percentile(self.ttft_ms, _SHARE),
            tpot_p99_ms=percentile(self.tpot_ms, _SHARE),
            itl_p99_ms=percentile(self.itl_ms, _SHARE),
            samples=self.offered,
            attainment=self._attainment(sla),
        )

    def _attainment(self, sla: SLA) -> float | None:
        """The lesser share, of requests or of gaps, that met its targets: as the tuner counts."""
        shares = []
        if self.due:
            shares.append(sum(_is_met(sla, record) for record in self.due) / len(self.due))
        if self.itl_ms and sla.itl_p99_ms is not None:
            shares.append(sum(ms <= sla.itl_p99_ms for ms in self.itl_ms) / len(self.itl_ms))
        return min(shares, default=None)


@dataclass(frozen=True, slots=True)
class Run:
    """One whole run of the demo."""

    name: str
    model: str
    machine: str
    sla: SLA
    rate_rps: float
    speed: Speed
    note: str
    """Why other targets were declared than the manifest's; empty where they were not."""
    cv: float
    start_at: float
    """When traffic began: the zero of every plot."""
    border_at: float
    """When the tuner was let loose."""
    judged_from: float
    end_at: float
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    changes: tuple[LimitsChange, ...]

    def before(self) -> Span:
        """Under the declared limits."""
        return span(self.records, self.start_at, self.border_at)

    def after(self) -> Span:
        """The last stretch, which the verdict is about."""
        return span(self.records, self.judged_from, self.end_at)

    def last_observed(self) -> MeasuredLatency | None:
        """The sidecar's own measurement at the end."""
        return self.samples[-1].observed if self.samples else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the SLA holds at the end, in a sentence."""

    holds: bool
    sentence: str


def span(records: Sequence[Record], start_at: float, end_at: float) -> Span:
    """Cut a stretch out of a run: requests by when they were due, gaps by when they ended."""
    due = tuple(record for record in records if start_at <= record.planned_at < end_at)
    return Span(
        seconds=end_at - start_at,
        due=due,
        output_tokens=sum(start_at <= at < end_at for record in records for at in record.token_ats),
        itl_ms=tuple(
            ms
            for record in records
            for at, ms in zip(record.token_ats[1:], record.itls_ms, strict=True)
            if start_at <= at < end_at
        ),
    )


def judge(sla: SLA, client: Span, sidecar: MeasuredLatency | None) -> Verdict:
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


def opening(sla: SLA, before: MeasuredLatency) -> str:
    """What the declared limits led to, also where they broke nothing."""
    misses = missed_targets(sla, before)
    if misses:
        return f"The declared limits missed the SLA: {'; '.join(misses)}."
    return "The declared limits met the SLA on this machine: there was nothing to mend."


def missed_targets(sla: SLA, seen: MeasuredLatency) -> list[str]:
    """Each target that was not met, or not measured."""
    return [
        f"{name} p99 {'was not measured' if value is None else f'{value:,.0f} ms'},"
        f" target {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is None or value > target
    ]


def targets(sla: SLA, seen: MeasuredLatency) -> list[tuple[str, float, float | None]]:
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


def _is_met(sla: SLA, record: Record) -> bool:
    ttft_target = math.inf if sla.ttft_p99_ms is None else sla.ttft_p99_ms
    tpot_target = math.inf if sla.tpot_p99_ms is None else sla.tpot_p99_ms
    return (
        record.outcome == "ok"
        and _first_token_ms(record) <= ttft_target
        and (record.tpot_ms or 0.0) <= tpot_target
    )


def _first_token_ms(record: Record) -> float:
    return math.inf if record.ttft_ms is None else record.ttft_ms


def _met_targets(sla: SLA, seen: MeasuredLatency) -> list[str]:
    return [
        f"{name} p99 {value:,.0f} ms of {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is not None
    ]
