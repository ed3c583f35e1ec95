"""Conclude every condition of a service, in the order in which a person reads them.

Ready, and kstatus' Reconciling and Stalled, do not depend on the SLA.
"""

from dataclasses import dataclass
from typing import Final

from paceline_api.pod.exit_reasons import LASTING
from paceline_operator.judgement import Judgement
from paceline_operator.observe import Observation
from paceline_operator.pod_conditions import model_available, workload_available
from paceline_operator.write_plan import WritePlan

_MEASURED: Final = ("TelemetryAvailable", "SLAMet", "SLAAchievable", "DeviceHealthy")


@dataclass(frozen=True, slots=True)
class Replicas:
    """The Deployment's counts."""

    present: int = 0
    ready: int = 0
    updated: int = 0
    is_current: bool = False
    """The Deployment's controller has seen what we wrote, and made every pod from it."""


def count_replicas(observation: Observation) -> Replicas:
    """Count the pods; the Deployment's controller tells which are of the present template."""
    deployment = observation.deployment
    if deployment is None:
        return Replicas()
    status = deployment.get("status", {})
    pods = [pod for pod in observation.pods if not pod.is_leaving]
    updated = status.get("updatedReplicas", 0)
    wanted = observation.service.spec.replicas
    return Replicas(
        present=len(pods),
        ready=sum(pod.is_ready for pod in pods),
        updated=updated,
        is_current=status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and deployment["spec"].get("replicas") == wanted
        # A new image comes with the same hash of the spec.
        and updated >= wanted,
    )


def service_conditions(
    observation: Observation, plan: WritePlan, *, problem: str
) -> tuple[Judgement, ...]:
    """Conclude every condition; `problem` is why the children could not be written, or empty."""
    model = model_available(observation)
    workload = workload_available(observation, problem=problem or plan.refusal)
    is_ready = _ready(observation, plan, workload=workload, model=model, problem=problem)
    is_stalled = _stalled(plan, workload=workload, model=model, problem=problem)
    return (
        is_ready,
        _reconciling(observation, ready=is_ready, stalled=is_stalled),
        is_stalled,
        model,
        workload,
        *_tuning(observation),
    )


def _tuning(observation: Observation) -> tuple[Judgement, ...]:
    """Pass the tuner's own conclusions on; without a pod to measure there are none."""
    report = observation.report
    if report is None and (before := _before(observation)):
        return before
    if report is not None and report.pods:
        return tuple(
            Judgement(found.type, found.status, found.reason, found.message)
            for found in report.conditions
        )
    nothing = "no pod is ready to be measured"
    return (
        *(Judgement(kind, "Unknown", "NoReadyPods", nothing) for kind in _MEASURED),
        _tuning_active(observation, nothing),
    )


def _before(observation: Observation) -> tuple[Judgement, ...]:
    """Repeat what status says: a restarted operator has not measured yet."""
    return tuple(
        Judgement(found.type, found.status, found.reason, found.message)
        for found in observation.service.status.conditions or ()
        if found.type in {*_MEASURED, "TuningActive"}
    )


def _tuning_active(observation: Observation, nothing: str) -> Judgement:
    spec = observation.service.spec
    if spec.paused:
        return Judgement("TuningActive", "False", "Paused", "spec.paused holds the limits")
    if spec.tuning.mode != "Auto":
        return Judgement("TuningActive", "False", spec.tuning.mode, "the mode changes no limits")
    return Judgement("TuningActive", "Unknown", "NoReadyPods", nothing)


def _ready(
    observation: Observation,
    plan: WritePlan,
    *,
    workload: Judgement,
    model: Judgement,
    problem: str,
) -> Judgement:
    """Conclude True when the wanted pods serve the observed generation."""
    if plan.refusal:
        return Judgement("Ready", "False", "Unsupported", plan.refusal)
    if problem:
        return Judgement("Ready", "False", "RolloutBlocked", problem)
    wanted = observation.service.spec.replicas
    serving = [
        pod
        for pod in observation.pods
        if pod.is_ready and not pod.is_leaving and pod.template_hash == plan.template_hash
    ]
    if not count_replicas(observation).is_current or len(serving) < wanted:
        cause = next((found for found in (model, workload) if found.status == "False"), workload)
        reason = cause.reason if cause.status == "False" else "Progressing"
        message = cause.message if cause.status == "False" else "pods of the new template start"
        return Judgement("Ready", "False", reason, message)
    if wanted == 0:
        return Judgement("Ready", "True", "ScaledToZero", "no pods are wanted")
    return Judgement("Ready", "True", "PodsReady", "the wanted pods serve")


def _stalled(plan: WritePlan, *, workload: Judgement, model: Judgement, problem: str) -> Judgement:
    """Conclude True where waiting will not help: a person must act."""
    if plan.refusal:
        return Judgement("Stalled", "True", "Unsupported", plan.refusal)
    if problem:
        return Judgement("Stalled", "True", "RolloutBlocked", problem)
    if model.status == "False" and model.reason in LASTING:
        return Judgement("Stalled", "True", model.reason, model.message)
    if workload.status == "False" and workload.reason == "RolloutBlocked":
        return Judgement("Stalled", "True", workload.reason, workload.message)
    return Judgement("Stalled", "False", "NotStalled", "nothing asks for a person")


def _reconciling(observation: Observation, *, ready: Judgement, stalled: Judgement) -> Judgement:
    """Conclude True while the cluster is on its way to the spec."""
    if observation.service.spec.paused:
        return Judgement("Reconciling", "False", "Paused", "spec.paused freezes the children")
    if stalled.status == "True" or ready.status == "True":
        return Judgement("Reconciling", "False", "Settled", "nothing is under way")
    return Judgement("Reconciling", "True", ready.reason, ready.message)
