"""The measurements of a demo run, and the verdict on them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_cli.sla_targets import missed_targets, targets
from paceline_cli.traffic.calibration import Speed
from paceline_cli.traffic.client_span import P99, ClientSpan, span
from paceline_cli.traffic.record import ClientRecord, percentile
from paceline_tuner.service_report import LimitsChange, MeasuredLatency
from paceline_tuner.service_spec import SLA

_MIN_REQUESTS = 12
_MIN_GAPS = 300


@dataclass(frozen=True, slots=True)
class TunerSample:
    """One reading of the sidecar and the tuner."""

    at: float
    """Client's monotonic seconds."""
    batch_size: int | None
    token_budget: int | None
    step_target_ms: float | None
    observed: MeasuredLatency


@dataclass(frozen=True, slots=True)
class DemoRun:
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
    records: tuple[ClientRecord, ...]
    samples: tuple[TunerSample, ...]
    changes: tuple[LimitsChange, ...]

    def before(self) -> ClientSpan:
        """What the client measured under the declared limits."""
        return span(self.records, self.start_at, self.border_at)

    def after(self) -> ClientSpan:
        """What the client measured at the end, which the verdict is about."""
        return span(self.records, self.judged_from, self.end_at)

    def last_observed(self) -> MeasuredLatency | None:
        """The sidecar's own measurement at the end."""
        return self.samples[-1].observed if self.samples else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the SLA holds at the end, in a sentence."""

    holds: bool
    sentence: str


def judge(sla: SLA, client: ClientSpan, sidecar: MeasuredLatency | None) -> Verdict:
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
    if misses and client.misses:
        first = client.misses[0]
        misses.append(
            f"client: {len(client.misses)} of {client.offered} requests got no whole answer"
            f" (the first {first.outcome}: {first.error})"
        )
    if sidecar is None:
        misses.append("sidecar: no measurement")
    else:
        misses += [f"sidecar: {text}" for text in missed_targets(sla, sidecar)]
    if misses:
        return Verdict(holds=False, sentence=f"The SLA does not hold: {'; '.join(misses)}.")
    return Verdict(holds=True, sentence=f"The SLA holds: {', '.join(_met_targets(sla, seen))}.")


def opening(sla: SLA, before: MeasuredLatency) -> str:
    """Say what the declared limits led to, also where they missed no target."""
    misses = missed_targets(sla, before)
    if misses:
        return f"The declared limits missed the SLA: {'; '.join(misses)}."
    return "The declared limits met the SLA on this machine: there was nothing to mend."


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
            (now, percentile((value for at, value in points if now - window_s < at <= now), P99))
        )
    return series


def _met_targets(sla: SLA, seen: MeasuredLatency) -> list[str]:
    return [
        f"{name} {seen.promised.name} {value:,.0f} ms of {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is not None
    ]
