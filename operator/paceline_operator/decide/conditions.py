"""All conditions of a service, in the order in which a person reads them."""

from paceline_operator.decide.judgement import Judgement
from paceline_operator.decide.model_loading import model_available
from paceline_operator.decide.plan import Plan
from paceline_operator.decide.readiness import ready, reconciling, stalled
from paceline_operator.decide.workload import workload_available
from paceline_operator.observe import Observed

_TUNING = ("TelemetryAvailable", "SLAMet", "SLAAchievable", "TuningActive")


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
    """Pass the tuner's own conclusions on; before its first round there are none."""
    if observed.report is None:
        return tuple(
            Judgement(kind, "Unknown", "NoReadyPods", "no pod has been measured yet")
            for kind in _TUNING
        )
    return tuple(
        Judgement(found.type, found.status, found.reason, found.message)
        for found in observed.report.conditions
    )
