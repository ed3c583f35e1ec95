"""ModelAvailable and WorkloadAvailable, concluded from the pods and the Deployment."""

import json
from collections.abc import Iterable
from typing import Final

from paceline_api.placement import GpuSpec
from paceline_api.pod.exit_reasons import REASONS
from paceline_operator.loading import FETCHING
from paceline_operator.missing_secrets import credentials_trouble, volume_trouble
from paceline_operator.observe import ContainerStatus, Observation, ObservedPod
from paceline_tuner.condition import Condition

_MODEL: Final = "ModelAvailable"
_WORKLOAD: Final = "WorkloadAvailable"
_IMAGE_TROUBLE: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
    }
)
_CONFIG_TROUBLE: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)

_NOT_ALLOCATED: Final = "cannot allocate all claims"


def model_available(observation: Observation) -> Condition:
    """Tell whether the weights are where they are needed."""
    pods = [pod for pod in observation.pods if not pod.is_leaving]
    failures = [*_failures(pods)]
    if failures:
        reason, message = failures[0]
        return Condition(_MODEL, "False", reason, message)
    if any(pod.is_ready for pod in pods):
        return Condition(_MODEL, "True", "Loaded", "the engine has loaded the model")
    if any(pod.engine.is_running for pod in pods):
        return _loading(observation)
    return Condition(_MODEL, "Unknown", "NoRunningPod", "no engine runs yet")


def _loading(observation: Observation) -> Condition:
    """Tell a download from the rest; how far it is stands in `status.loading`."""
    if not observation.service.spec.model.uri.startswith("hf://"):
        return Condition(_MODEL, "False", "Loading", "the engine loads the model")
    if observation.loading is None:  # an older sidecar, or one that does not answer
        return Condition(_MODEL, "False", "Downloading", "the engine fetches or loads the model")
    if observation.loading.stage == FETCHING:
        return Condition(_MODEL, "False", "Downloading", "the engine downloads the model")
    return Condition(_MODEL, "False", "Loading", "the engine loads the model")


def _failures(pods: Iterable[ObservedPod]) -> Iterable[tuple[str, str]]:
    """Read `{"reason", "message"}` from engines that left for a reason and are not back."""
    for pod in pods:
        last = pod.engine.last_exit
        if pod.is_ready or last is None or last.exit_code == 0:
            continue
        try:
            words = json.loads(last.message)
            reason, message = str(words["reason"]), str(words["message"])
        except (ValueError, KeyError, TypeError):
            continue  # killed, or it crashed: that is the workload's condition
        if reason in REASONS:
            yield reason, message


def workload_available(observation: Observation, *, problem: str, failure: str = "") -> Condition:
    """Tell whether the wanted pods run; `problem` is why they cannot be written.

    `failure` is why the last try to write them did not succeed.
    """
    if problem:
        return Condition(_WORKLOAD, "False", "RolloutBlocked", problem)
    wanted = observation.service.spec.replicas
    ready = [pod for pod in observation.pods if pod.is_ready and not pod.is_leaving]
    if len(ready) >= wanted:
        return Condition(_WORKLOAD, "True", "Available", "the wanted pods run")
    troubles = [*_troubles(observation)]
    if troubles:
        reason, message = troubles[0]
        return Condition(_WORKLOAD, "False", reason, message)
    return Condition(_WORKLOAD, "False", "Progressing", failure or "pods are starting")


def _troubles(observation: Observation) -> Iterable[tuple[str, str]]:
    """Name what stands in the way, the most telling first."""
    pods = [pod for pod in observation.pods if not pod.is_leaving and not pod.is_ready]
    yield from _unscheduled(pods, observation.service.spec.resources.gpu)
    service = observation.service
    if observation.held_up is not None:
        yield volume_trouble(service, observation.held_up)
    for pod in pods:
        for name, container in (("sidecar", pod.sidecar), ("engine", pod.engine)):
            if missing := credentials_trouble(service, pod.name, container.waiting_message):
                yield missing
            yield from _container_trouble(pod, name, container)
    yield from _deployment_trouble(observation)


def _unscheduled(pods: Iterable[ObservedPod], gpu: GpuSpec) -> Iterable[tuple[str, str]]:
    for pod in pods:
        if pod.gates:
            yield "SchedulingGated", f"pod {pod.name} waits for {', '.join(pod.gates)}"
        elif pod.unschedulable:
            reason = "InsufficientGPU" if _lacks_gpu(gpu, pod.unschedulable) else "Unschedulable"
            yield reason, f"pod {pod.name}: {pod.unschedulable}"


def _lacks_gpu(gpu: GpuSpec, note: str) -> bool:
    """Tell by the scheduler's words, which name no claim."""
    if gpu.claim:
        return _NOT_ALLOCATED in note
    return f"Insufficient {gpu.resource_name}" in note


def _container_trouble(
    pod: ObservedPod, name: str, container: ContainerStatus
) -> Iterable[tuple[str, str]]:
    where = f"pod {pod.name}, container {name}"
    if container.waiting_reason in _IMAGE_TROUBLE:
        yield "ImagePull", f"{where}: {container.waiting_message or container.waiting_reason}"
    if container.waiting_reason in _CONFIG_TROUBLE:
        yield "RolloutBlocked", f"{where}: {container.waiting_message or container.waiting_reason}"
    if container.last_exit and container.last_exit.reason == "OOMKilled":
        yield "OutOfMemory", f"{where} exceeded its memory limit"
    if container.waiting_reason == "CrashLoopBackOff":
        said = container.last_exit.message if container.last_exit else ""
        yield "CrashLoop", f"{where} keeps ending: {said or 'it left no message'}"[:1024]


def _deployment_trouble(observation: Observation) -> Iterable[tuple[str, str]]:
    deployment = observation.deployment or {}
    for condition in deployment.get("status", {}).get("conditions", ()):
        is_late = condition.get("reason") == "ProgressDeadlineExceeded"
        is_refused = condition["type"] == "ReplicaFailure" and condition["status"] == "True"
        if is_late or is_refused:
            yield "RolloutBlocked", condition.get("message", "the rollout makes no progress")
