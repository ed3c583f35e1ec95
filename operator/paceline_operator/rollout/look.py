"""Read from one observation what the next step of its rollout depends on."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from paceline_api.labels import Manifest, canary_name
from paceline_api.status import Images
from paceline_operator.observe import Observation, ObservedPod
from paceline_operator.pod_conditions import model_available, workload_available
from paceline_operator.rollout.images import (
    is_asked,
    is_cold_change,
    live_hash,
    live_images,
    recorded_images,
    wanted_images,
)
from paceline_operator.rollout.step import CanaryPod, OldPods, Seen, trial_name
from paceline_tuner.service_report import ExperimentReport

_MAY_PASS_S: Final = 60.0
"""Image pulls may fail for less than this: a registry is away, or a Secret comes late."""
_LASTING: Final = frozenset({"ImagePull", "OutOfMemory", "RolloutBlocked"})


def look(observation: Observation, operator: Images) -> Seen:
    """Gather what the next step depends on, except whose turn it is."""
    service, deployment = observation.service, observation.deployment
    spec = service.spec
    recorded = recorded_images(service, deployment, operator)
    wanted = wanted_images(spec, recorded, operator)
    return Seen(
        wanted=wanted,
        recorded=recorded,
        rollout=service.status.rollout,
        pods=_old_pods(observation, wanted),
        now=observation.now,
        replicas=spec.replicas,
        startup_s=spec.rollout.startup_seconds,
        canary_s=spec.rollout.canary_seconds,
        has_surge=has_surge(spec.rollout.max_surge),
        is_asked=is_asked(spec, recorded),
        is_cold=is_cold_change(spec, recorded, live_hash(deployment)),
        canary=_canary(observation, wanted),
        trial=_trial(observation),
    )


def has_surge(max_surge: int | str) -> bool:
    """Tell whether a pod may be made above the wanted ones."""
    return str(max_surge) not in {"0", "0%"}


def _old_pods(observation: Observation, wanted: Images) -> OldPods:
    pods = tuple(pod for pod in observation.pods if not pod.is_canary)
    deployment = observation.deployment
    trouble, is_late = _trouble(replace(observation, pods=pods))
    return OldPods(
        num_ready=sum(pod.is_ready and not pod.is_leaving for pod in pods),
        is_settled=deployment is not None and _is_settled(deployment),
        has_new_images=live_images(observation.service, deployment) == wanted,
        trouble=trouble,
        is_late=is_late,
    )


def _is_settled(deployment: Manifest) -> bool:
    """Tell whether the controller has made every pod from the present template."""
    status, replicas = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    updated = status.get("updatedReplicas", 0)
    return bool(
        status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
        and updated >= replicas
        and status.get("replicas", 0) == updated
    )


def _trouble(observation: Observation) -> tuple[str, bool]:
    """Say what stands in the pods' way, and whether their Deployment is late."""
    workload = workload_available(observation, problem="")
    is_late = _is_late(observation.deployment)
    is_trouble = workload.status == "False" and (is_late or workload.reason != "Progressing")
    return workload.message if is_trouble else "", is_late


def _is_late(deployment: Manifest | None) -> bool:
    conditions: Iterable[Manifest] = (deployment or {}).get("status", {}).get("conditions", ())
    return any(found.get("reason") == "ProgressDeadlineExceeded" for found in conditions)


def _canary(observation: Observation, wanted: Images) -> CanaryPod | None:
    service = observation.service
    deployment = observation.children.get(("Deployment", canary_name(service.metadata.name)))
    if deployment is None or live_images(service, deployment) != wanted:
        return None
    pods = tuple(pod for pod in observation.pods if pod.is_canary and not pod.is_leaving)
    return CanaryPod(
        is_ready=any(pod.is_ready for pod in pods),
        trouble=_canary_trouble(observation, pods, deployment),
    )


def _canary_trouble(
    observation: Observation, pods: tuple[ObservedPod, ...], deployment: Manifest
) -> str:
    """Conclude as for a whole service of this one pod."""
    service = observation.service
    alone = replace(
        observation,
        service=service.model_copy(
            update={"spec": service.spec.model_copy(update={"replicas": 1})}
        ),
        pods=pods,
        children={("Deployment", service.metadata.name): deployment},
    )
    model, workload = model_available(alone), workload_available(alone, problem="")
    if workload.status == "True":
        return ""
    if _is_late(deployment):
        return f"its pod was not ready within startupSeconds: {workload.message}"
    if workload.reason == "CrashLoop":
        said = model if model.status == "False" and model.reason != "Loading" else workload
        return f"its pod keeps ending: {said.message}"
    if workload.reason in _LASTING and _age_s(observation) >= _MAY_PASS_S:
        return f"its pod cannot start: {workload.message}"
    return ""


def _age_s(observation: Observation) -> float:
    rollout = observation.service.status.rollout
    if rollout is None:
        return 0.0
    return (observation.now - datetime.fromisoformat(rollout.since)).total_seconds()


def _trial(observation: Observation) -> ExperimentReport | None:
    """Give the tuner's comparison, where it is about this very rollout."""
    rollout, report = observation.service.status.rollout, observation.report
    trial = None if report is None else report.image_trial
    if rollout is None or trial is None or trial.name != trial_name(rollout):
        return None
    return trial
