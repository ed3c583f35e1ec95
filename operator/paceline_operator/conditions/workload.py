"""WorkloadAvailable: from the pods' and the Deployment's state."""

from collections.abc import Iterable
from typing import Final

from paceline_operator.conditions.judgement import Judgement
from paceline_operator.observe import Observed
from paceline_operator.pod_status import ContainerStatus, PodStatus

TYPE: Final = "WorkloadAvailable"
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


def workload_available(observed: Observed, *, problem: str) -> Judgement:
    """Tell whether the wanted pods run; `problem` is why they could not be written."""
    if problem:
        return Judgement(TYPE, "False", "RolloutBlocked", problem)
    wanted = observed.service.spec.replicas
    ready = [pod for pod in observed.pods if pod.is_ready and not pod.is_leaving]
    if len(ready) >= wanted:
        return Judgement(TYPE, "True", "Available", "the wanted pods run")
    troubles = [*_troubles(observed)]
    if troubles:
        reason, message = troubles[0]
        return Judgement(TYPE, "False", reason, message)
    return Judgement(TYPE, "False", "Progressing", "pods are starting")


def _troubles(observed: Observed) -> Iterable[tuple[str, str]]:
    """Name what stands in the way, the most telling first."""
    pods = [pod for pod in observed.pods if not pod.is_leaving and not pod.is_ready]
    yield from _unscheduled(pods, observed.service.spec.resources.gpu.resource_name)
    for pod in pods:
        for name, container in (("sidecar", pod.sidecar), ("engine", pod.engine)):
            yield from _container_trouble(pod, name, container)
    yield from _deployment_trouble(observed)


def _unscheduled(pods: Iterable[PodStatus], gpu: str) -> Iterable[tuple[str, str]]:
    for pod in pods:
        if pod.unschedulable:
            lacks_gpu = f"Insufficient {gpu}" in pod.unschedulable
            reason = "InsufficientGPU" if lacks_gpu else "Unschedulable"
            yield reason, f"pod {pod.name}: {pod.unschedulable}"


def _container_trouble(
    pod: PodStatus, name: str, container: ContainerStatus
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


def _deployment_trouble(observed: Observed) -> Iterable[tuple[str, str]]:
    deployment = observed.deployment or {}
    for condition in deployment.get("status", {}).get("conditions", ()):
        is_late = condition.get("reason") == "ProgressDeadlineExceeded"
        is_refused = condition["type"] == "ReplicaFailure" and condition["status"] == "True"
        if is_late or is_refused:
            yield "RolloutBlocked", condition.get("message", "the rollout makes no progress")
