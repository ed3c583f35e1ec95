"""Conclude every condition of a service, in the order in which a person reads them.

Ready, and kstatus' Reconciling and Stalled, do not depend on the SLA.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from paceline_api.labels import secret_name
from paceline_api.pod.exit_reasons import LASTING
from paceline_operator.observe import Observation
from paceline_operator.pod_conditions import model_available, workload_available
from paceline_operator.render.extras import asks_for_extras
from paceline_operator.write_plan import WritePlan
from paceline_tuner.condition import Condition

_NEEDS_A_PERSON: Final = frozenset({"RolloutBlocked", "SecretMissing"})
_EXTRAS: Final = "ExtrasAvailable"
_MEASURED: Final = ("TelemetryAvailable", "SLAMet", "SLAAchievable", "DeviceHealthy")


@dataclass(frozen=True, slots=True)
class Replicas:
    """The Deployment's counts."""

    present: int = 0
    ready: int = 0
    updated: int = 0
    is_current: bool = False
    """The Deployment's controller has seen what we wrote, and made every pod from it."""


def without_canary(observation: Observation) -> Observation:
    """Leave out a canary that does not serve: its trouble is told in status.rollout."""
    pods = (pod for pod in observation.pods if pod.is_ready or not pod.is_canary)
    return replace(observation, pods=tuple(pods))


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
    observation: Observation, plan: WritePlan, *, problem: str, failure: str = ""
) -> tuple[Condition, ...]:
    """Conclude every condition.

    `problem` is why the children cannot be written, `failure` why the last try did not succeed
    although the next one may; both are empty as a rule.
    """
    observation = without_canary(observation)
    model = model_available(observation)
    workload = workload_available(observation, problem=problem or plan.refusal, failure=failure)
    is_ready = _ready(
        observation, plan, workload=workload, model=model, problem=problem, failure=failure
    )
    is_stalled = _stalled(plan, workload=workload, model=model, problem=problem)
    return (
        is_ready,
        _reconciling(observation, ready=is_ready, stalled=is_stalled),
        is_stalled,
        model,
        workload,
        *_tuning(observation),
        *_extras(observation),
    )


def _extras(observation: Observation) -> tuple[Condition, ...]:
    """Tell of the children that serving does not need, where they were asked for or one is missing.

    Ready does not depend on them.
    """
    if observation.lacks is None:
        return _before(observation, {_EXTRAS})
    if observation.lacks:
        message = "; ".join(lack.message for lack in observation.lacks)
        return (Condition(_EXTRAS, "False", observation.lacks[0].reason, message),)
    if asks_for_extras(observation.service.spec):
        return (Condition(_EXTRAS, "True", "Written", "what monitoring and api ask for is there"),)
    return ()


def _tuning(observation: Observation) -> tuple[Condition, ...]:
    """Pass the tuner's own conclusions on; without a pod to measure there are none."""
    report = observation.report
    if report is None and (before := _before(observation, {*_MEASURED, "TuningActive"})):
        return before
    if report is not None and report.pods:
        return tuple(_with_remedy(observation, found) for found in report.conditions)
    nothing = "no pod is ready to be measured"
    return (
        *(Condition(kind, "Unknown", "NoReadyPods", nothing) for kind in _MEASURED),
        _tuning_active(observation, nothing),
    )


def _with_remedy(observation: Observation, condition: Condition) -> Condition:
    """Add the remedy to a refused token's condition: delete its Secret."""
    if condition.reason != "TokenRefused":
        return condition
    metadata = observation.service.metadata
    command = f"kubectl -n {metadata.namespace} delete secret {secret_name(metadata.name)}"
    message = (
        f"pods refuse the operator's token, as Secret {secret_name(metadata.name)} holds another;"
        f" it is made anew after: {command}"
    )
    return replace(condition, message=message)


def _before(observation: Observation, kinds: Collection[str]) -> tuple[Condition, ...]:
    """Repeat what status says, where nothing newer is known."""
    return tuple(
        Condition(found.type, found.status, found.reason, found.message)
        for found in observation.service.status.conditions or ()
        if found.type in kinds
    )


def _tuning_active(observation: Observation, nothing: str) -> Condition:
    spec = observation.service.spec
    if spec.paused:
        return Condition("TuningActive", "False", "Paused", "spec.paused holds the limits")
    if spec.tuning.mode != "Auto":
        return Condition("TuningActive", "False", spec.tuning.mode, "the mode changes no limits")
    return Condition("TuningActive", "Unknown", "NoReadyPods", nothing)


def _ready(
    observation: Observation,
    plan: WritePlan,
    *,
    workload: Condition,
    model: Condition,
    problem: str,
    failure: str,
) -> Condition:
    """Conclude True when the wanted pods serve the observed generation."""
    if plan.refusal:
        return Condition("Ready", "False", "Unsupported", plan.refusal)
    if problem:
        return Condition("Ready", "False", "RolloutBlocked", problem)
    if plan.rolled_back:
        return Condition("Ready", "False", "RolledBack", plan.rolled_back)
    wanted = observation.service.spec.replicas
    serving = [
        pod
        for pod in observation.pods
        if pod.is_ready
        and not pod.is_leaving
        and not pod.is_canary
        and pod.template_hash == plan.template_hash
    ]
    if not count_replicas(observation).is_current or len(serving) < wanted:
        cause = next((found for found in (model, workload) if found.status == "False"), workload)
        reason = cause.reason if cause.status == "False" else "Progressing"
        new = failure or "pods of the new template start"
        message = cause.message if cause.status == "False" else new
        return Condition("Ready", "False", reason, message)
    if wanted == 0:
        return Condition("Ready", "True", "ScaledToZero", "no pods are wanted")
    return Condition("Ready", "True", "PodsReady", "the wanted pods serve")


def _stalled(plan: WritePlan, *, workload: Condition, model: Condition, problem: str) -> Condition:
    """Conclude True where waiting will not help: a person must act."""
    if plan.refusal:
        return Condition("Stalled", "True", "Unsupported", plan.refusal)
    if problem:
        return Condition("Stalled", "True", "RolloutBlocked", problem)
    if plan.rolled_back:
        return Condition("Stalled", "True", "RolledBack", plan.rolled_back)
    if model.status == "False" and model.reason in LASTING:
        return Condition("Stalled", "True", model.reason, model.message)
    if workload.status == "False" and workload.reason in _NEEDS_A_PERSON:
        return Condition("Stalled", "True", workload.reason, workload.message)
    return Condition("Stalled", "False", "NotStalled", "nothing asks for a person")


def _reconciling(observation: Observation, *, ready: Condition, stalled: Condition) -> Condition:
    """Conclude True while the cluster is on its way to the spec."""
    if observation.service.spec.paused:
        return Condition("Reconciling", "False", "Paused", "spec.paused freezes the children")
    if stalled.status == "True" or ready.status == "True":
        return Condition("Reconciling", "False", "Settled", "nothing is under way")
    return Condition("Reconciling", "True", ready.reason, ready.message)
