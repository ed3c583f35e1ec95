"""Ready, and kstatus' Reconciling and Stalled. None of them depends on the SLA."""

from dataclasses import dataclass

from paceline_api.pod.exit_reasons import LASTING
from paceline_operator.conditions.judgement import Judgement
from paceline_operator.conditions.plan import Plan
from paceline_operator.observe import Observed


@dataclass(frozen=True, slots=True)
class Replicas:
    """The Deployment's counts."""

    present: int = 0
    ready: int = 0
    updated: int = 0
    is_current: bool = False
    """The Deployment's controller has seen what we wrote, and made every pod from it."""


def count_replicas(observed: Observed) -> Replicas:
    """Count the pods; the Deployment's controller tells which are of the present template."""
    deployment = observed.deployment
    if deployment is None:
        return Replicas()
    status = deployment.get("status", {})
    pods = [pod for pod in observed.pods if not pod.is_leaving]
    updated = status.get("updatedReplicas", 0)
    wanted = observed.service.spec.replicas
    return Replicas(
        present=len(pods),
        ready=sum(pod.is_ready for pod in pods),
        updated=updated,
        is_current=status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
        and deployment["spec"].get("replicas") == wanted
        # A new image comes with the same hash of the spec.
        and updated >= wanted,
    )


def ready(
    observed: Observed, plan: Plan, *, workload: Judgement, model: Judgement, problem: str
) -> Judgement:
    """True when the wanted pods serve the observed generation."""
    if plan.refusal:
        return Judgement("Ready", "False", "Unsupported", plan.refusal)
    if problem:
        return Judgement("Ready", "False", "RolloutBlocked", problem)
    wanted = observed.service.spec.replicas
    serving = [
        pod
        for pod in observed.pods
        if pod.is_ready and not pod.is_leaving and pod.template_hash == plan.template_hash
    ]
    if not count_replicas(observed).is_current or len(serving) < wanted:
        cause = next((found for found in (model, workload) if found.status == "False"), workload)
        reason = cause.reason if cause.status == "False" else "Progressing"
        message = cause.message if cause.status == "False" else "pods of the new template start"
        return Judgement("Ready", "False", reason, message)
    if wanted == 0:
        return Judgement("Ready", "True", "ScaledToZero", "no pods are wanted")
    return Judgement("Ready", "True", "PodsReady", "the wanted pods serve")


def stalled(plan: Plan, *, workload: Judgement, model: Judgement, problem: str) -> Judgement:
    """True where waiting will not help: a person must act."""
    if plan.refusal:
        return Judgement("Stalled", "True", "Unsupported", plan.refusal)
    if problem:
        return Judgement("Stalled", "True", "RolloutBlocked", problem)
    if model.status == "False" and model.reason in LASTING:
        return Judgement("Stalled", "True", model.reason, model.message)
    if workload.status == "False" and workload.reason == "RolloutBlocked":
        return Judgement("Stalled", "True", workload.reason, workload.message)
    return Judgement("Stalled", "False", "NotStalled", "nothing asks for a person")


def reconciling(observed: Observed, *, ready: Judgement, stalled: Judgement) -> Judgement:
    """True while the cluster is on its way to the spec."""
    if observed.service.spec.paused:
        return Judgement("Reconciling", "False", "Paused", "spec.paused freezes the children")
    if stalled.status == "True" or ready.status == "True":
        return Judgement("Reconciling", "False", "Settled", "nothing is under way")
    return Judgement("Reconciling", "True", ready.reason, ready.message)
