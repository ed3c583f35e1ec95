"""All conditions of a service, in the order in which a person reads them."""

from paceline_operator.conditions.judgement import Judgement
from paceline_operator.conditions.model_loading import model_available
from paceline_operator.conditions.plan import Plan
from paceline_operator.conditions.readiness import ready, reconciling, stalled
from paceline_operator.conditions.workload import workload_available
from paceline_operator.observe import Observed

_MEASURED = ("TelemetryAvailable", "SLAMet", "SLAAchievable", "DeviceHealthy")


def judge(observed: Observed, plan: Plan, *, problem: str) -> tuple[Judgement, ...]:
    """Conclude every condition; `problem` is why the children could not be written, or empty."""
    model = model_available(observed)
    workload = workload_available(observed, problem=problem or plan.refusal)
    is_ready = ready(observed, plan, workload=workload, model=model, problem=problem)
    is_stalled = stalled(plan, workload=workload, model=model, problem=problem)
    return (
        is_ready,
        reconciling(observed, ready=is_ready, stalled=is_stalled),
        is_stalled,
        model,
        workload,
        *_tuning(observed),
    )


def _tuning(observed: Observed) -> tuple[Judgement, ...]:
    """Pass the tuner's own conclusions on; without a pod to measure there are none."""
    report = observed.report
    if report is None and (before := _before(observed)):
        return before
    if report is not None and report.pods:
        return tuple(
            Judgement(found.type, found.status, found.reason, found.message)
            for found in report.conditions
        )
    nothing = "no pod is ready to be measured"
    return (
        *(Judgement(kind, "Unknown", "NoReadyPods", nothing) for kind in _MEASURED),
        _tuning_active(observed, nothing),
    )


def _before(observed: Observed) -> tuple[Judgement, ...]:
    """Repeat what status says: a restarted operator has not measured yet."""
    return tuple(
        Judgement(found.type, found.status, found.reason, found.message)
        for found in observed.service.status.conditions or ()
        if found.type in {*_MEASURED, "TuningActive"}
    )


def _tuning_active(observed: Observed, nothing: str) -> Judgement:
    spec = observed.service.spec
    if spec.paused:
        return Judgement("TuningActive", "False", "Paused", "spec.paused holds the limits")
    if spec.tuning.mode != "Auto":
        return Judgement("TuningActive", "False", spec.tuning.mode, "the mode changes no limits")
    return Judgement("TuningActive", "Unknown", "NoReadyPods", nothing)
