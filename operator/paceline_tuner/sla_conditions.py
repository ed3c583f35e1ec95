"""The tuner's conditions of a service, from its pods' decisions. No numbers in messages."""

from collections.abc import Mapping, Sequence
from typing import Literal

from paceline_tuner.attainment import MIN_SAMPLES, Counts, verdict
from paceline_tuner.condition import Condition, Obstacle, Truth
from paceline_tuner.decision import Decision
from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.service_spec import TuningSpec

Kind = Literal["TelemetryAvailable", "SLAMet", "SLAAchievable", "DeviceHealthy", "TuningActive"]
_OBSTACLES: Mapping[Obstacle, str] = {
    "CapacityExceeded": "more requests arrive than the pods can serve within the SLA; more "
    "replicas help",
    "KVBound": "KV memory bounds the batch below what the load needs; more replicas or memory help",
    "TTFTvsTPOTConflict": "prompts cannot be computed in time without slowing running requests; "
    "more replicas help",
    "TPOTFloor": "one request alone is slower than the token target; replicas do not help, a "
    "faster device or a smaller model does",
    "TTFTFloor": "a long prompt alone takes longer than the TTFT target; replicas do not help",
    "E2EFloor": "a long answer alone takes longer than the end-to-end target; replicas do not "
    "help, a faster device, a smaller model or shorter answers do",
    "DegradedHardware": "a pod's device is slower than it was; replace the pod",
}


def telemetry_available(
    errors: Sequence[str], counts: Counts, *, is_token_refused: bool = False
) -> Condition:
    """Judge whether the tuner sees its pods; `errors` has one entry a pod, empty if it answered."""
    if not errors:
        return _condition("TelemetryAvailable", "Unknown", "MetricsStale", "no pod is ready")
    if is_token_refused:
        return _condition("TelemetryAvailable", "False", "TokenRefused", "pods refuse the token")
    if all(errors):
        return _condition("TelemetryAvailable", "False", "ScrapeFailed", "no pod gives telemetry")
    if any(errors):
        message = "some pods give no telemetry"
        return _condition("TelemetryAvailable", "False", "ScrapeFailed", message)
    if counts.requests == 0:
        return _condition("TelemetryAvailable", "True", "NoTraffic", "no request in the window")
    return _condition("TelemetryAvailable", "True", "MetricsFresh", "all pods give telemetry")


def sla_met(
    counts: Counts,
    observed: MeasuredLatency,
    spec: TuningSpec,
    last: Condition | None,
    *,
    is_seen: bool,
) -> Condition:
    """Judge whether enough requests meet the SLA; while unsure, the `last` verdict stands."""
    if not is_seen:
        return _condition("SLAMet", "Unknown", "InsufficientSamples", "no pod gives telemetry")
    if counts.requests == 0 and counts.gaps == 0:
        return _condition("SLAMet", "Unknown", "NoTraffic", "no request in the window")
    state = verdict(counts, spec.sla.objective, observed.by_prompt_tokens)
    if state == "Meeting":
        return _condition("SLAMet", "True", "Meeting", "requests meet the SLA")
    if state == "Violating":
        return _condition("SLAMet", "False", "Violating", _violation(observed))
    if last is not None and last.status != "Unknown" and counts.requests >= MIN_SAMPLES:
        return last
    return _condition("SLAMet", "Unknown", "InsufficientSamples", "too few requests to tell")


def _violation(observed: MeasuredLatency) -> str:
    """Say which prompts fail where they have targets by length. The bounds are declared ones."""
    message = "too many requests miss the SLA"
    failing = [each.name for each in observed.failing]
    if not failing:
        return message
    return f"{message}: prompts of {' and '.join(failing)} tokens their TTFT target"


def sla_achievable(decisions: Sequence[Decision]) -> Condition:
    """Judge whether any limits would keep the SLA, by the first pod with a lasting obstacle."""
    for decision in decisions:
        if decision.obstacle:
            message = _OBSTACLES[decision.obstacle]
            return _condition("SLAAchievable", "False", decision.obstacle, message)
    if not any(decision.is_trusted for decision in decisions):
        message = "the step model is not trusted yet"
        return _condition("SLAAchievable", "Unknown", "InsufficientData", message)
    return _condition("SLAAchievable", "True", "Achievable", "limits exist that keep the SLA")


def device_healthy(decisions: Sequence[Decision]) -> Condition:
    """Judge whether steps take as long as they did, whether or not the SLA is still met."""
    if any(decision.is_slow for decision in decisions):
        return _condition(
            "DeviceHealthy", "False", "DegradedHardware", _OBSTACLES["DegradedHardware"]
        )
    if not any(decision.is_trusted for decision in decisions):
        message = "the step model is not trusted yet"
        return _condition("DeviceHealthy", "Unknown", "InsufficientData", message)
    return _condition("DeviceHealthy", "True", "Steady", "steps take as long as they did")


def tuning_active(spec: TuningSpec, decisions: Sequence[Decision], *, is_seen: bool) -> Condition:
    """Judge whether the tuner changes limits."""
    if spec.paused:
        return _condition("TuningActive", "False", "Paused", "the service is paused")
    if spec.mode != "Auto":
        message = {
            "Observe": "limits are computed and not applied",
            "Fixed": "the initial limits are held",
        }[spec.mode]
        return _condition("TuningActive", "False", spec.mode, message)
    if not is_seen:
        return _condition("TuningActive", "False", "TelemetryLoss", "no pod gives telemetry")
    if any(decision.phase == "Learning" and not decision.is_trusted for decision in decisions):
        message = "limits follow trial and error, as the step model does not hold"
        return _condition("TuningActive", "False", "ModelUntrusted", message)
    return _condition("TuningActive", "True", "Tuning", "limits follow the measured load")


def _condition(kind: Kind, status: Truth, reason: str, message: str) -> Condition:
    return Condition(kind, status, reason, message)
