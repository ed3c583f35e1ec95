"""From one pod's live telemetry to a diagnosis."""

from dataclasses import dataclass

from paceline_cli.diagnose.achieved import Achieved, achieved
from paceline_cli.diagnose.advice import Advice, advise
from paceline_cli.diagnose.engine_time import EngineTime, engine_time
from paceline_cli.diagnose.latency import Span, spans
from paceline_cli.diagnose.turning_point import turning_batch
from paceline_tuner.change_detection import detect_changes
from paceline_tuner.pod_state import PodState
from paceline_tuner.pod_view import view_pod
from paceline_tuner.service_report import MeasuredLatency, Throughput, TokenCost
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.telemetry import Telemetry
from paceline_tuner.throughput import throughput, throughput_of_records, token_cost
from paceline_tuner.window import Evidence, Window


class UndiagnosableError(Exception):
    """The pod's answer holds nothing to judge by; the message says why."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One pod over one window."""

    window_s: float
    num_requests: int
    outcomes: dict[str, int]
    """How the requests that ended in the window ended."""
    sla: SLA
    observed: MeasuredLatency
    mean_e2e_ms: float | None
    """From arrival to end, of the requests that were answered; None without any."""
    arrival_rps: float
    capacity_rps: float | None
    """λ*; None while the step model is not trusted."""
    spans: tuple[Span, ...]
    time: EngineTime
    advice: tuple[Advice, ...]
    note: str
    """What the figures lack; empty where nothing."""
    throughput: Throughput
    cost: TokenCost | None
    """What a million of this pod's tokens costs; None without a price."""
    achieved: Achieved | None
    """None where the pod does not say how large its model is."""
    turning_batch: float | None
    """Sequences from which on decode is bound by compute, by the step model.

    None while the model is not trusted, and where memory bounds any number.
    """


def diagnose(
    telemetry: Telemetry, *, window_s: float = 60.0, price_per_hour: float | None = None
) -> Diagnosis:
    """Judge the newest `window_s` seconds. Raises UndiagnosableError."""
    window = Window()
    window.add(telemetry)
    evidence = window.evidence(window_s)
    if evidence is None:
        raise UndiagnosableError(window.trouble or "it holds no limits, load or step model yet")
    return diagnose_evidence(evidence, price_per_hour=price_per_hour)


def diagnose_evidence(evidence: Evidence, *, price_per_hour: float | None = None) -> Diagnosis:
    """Judge a window that was gathered from several answers. Raises UndiagnosableError."""
    if not evidence.steps:
        window_s = evidence.window_s
        raise UndiagnosableError(f"no step ran in the last {window_s:g} s: send some requests")
    spec = TuningSpec(sla=evidence.limits.sla.sla, window_s=evidence.window_s)
    view = view_pod(spec, evidence, detect_changes(spec, evidence, PodState()))
    time = engine_time(evidence)
    found = spans(evidence, time)
    given = throughput(evidence) or throughput_of_records(evidence)
    context = view.capacity_model.demand.context
    outcomes: dict[str, int] = {}
    for record in evidence.requests:
        outcomes[record.outcome] = outcomes.get(record.outcome, 0) + 1
    return Diagnosis(
        window_s=evidence.window_s,
        num_requests=len(evidence.requests),
        outcomes=outcomes,
        sla=spec.sla,
        observed=view.observed,
        mean_e2e_ms=_mean_e2e_ms(evidence),
        arrival_rps=view.capacity_model.demand.arrival_rps,
        capacity_rps=(
            view.capacity_model.sustainable_rps(view.current.batch_size)
            if view.is_trusted
            else None
        ),
        spans=found,
        time=time,
        advice=advise(view, time, found),
        note=_note(view.is_trusted, evidence.model.reason, num_served=len(found)),
        throughput=given,
        cost=token_cost(given, price_per_hour=price_per_hour),
        achieved=achieved(evidence),
        turning_batch=(
            turning_batch(evidence.model.theta, evidence.model.knee, context)
            if view.is_trusted
            else None
        ),
    )


def _mean_e2e_ms(evidence: Evidence) -> float | None:
    served = [record for record in evidence.requests if record.is_ok]
    seconds = sum(record.weight * (record.finished_at - record.arrived_at) for record in served)
    return 1e3 * seconds / sum(record.weight for record in served) if served else None


def _note(is_trusted: bool, reason: str, *, num_served: int) -> str:
    if not is_trusted:
        why = reason or "too few steps yet"
        return f"the step model is not trusted ({why}): shares of a step are rough, no λ*"
    return "" if num_served else "no request was answered in the window: only steps are told"
