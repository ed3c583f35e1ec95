"""Read once what the watches know about a service."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from paceline_api.inference_service import InferenceService
from paceline_api.labels import ADMIN_TLS, CANARY, TEMPLATE_HASH, Manifest
from paceline_operator.pod_loading import PodLoading
from paceline_tuner.service_report import ServiceReport

ObjectId = tuple[str, str]
"""Kind and name, within the service's namespace."""

_NO_STATE: Mapping[str, Any] = {}


class Watched(Protocol):
    """What the watches know, by `namespace/name` of the service."""

    def keys(self) -> Iterable[str]:
        """Name every InferenceService."""
        ...

    def service(self, key: str) -> Manifest | None:
        """Give the InferenceService itself."""
        ...

    def children(self, key: str) -> Iterable[Manifest]:
        """Give the objects that carry our labels for it."""
        ...

    def pods(self, key: str) -> Iterable[Manifest]:
        """Give its pods."""
        ...

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        """Give the kind and metadata of all children and pods of all services.

        The metadata has at least uid, namespace, name and resourceVersion.
        """
        ...


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """How a container last ended."""

    reason: str
    """`OOMKilled`, `Error`, `Completed`."""
    exit_code: int
    message: str
    """Its termination message."""


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container's state."""

    is_running: bool = False
    is_ready: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    restarts: int = 0
    last_exit: ContainerExit | None = None
    image_id: str = ""


@dataclass(frozen=True, slots=True)
class ObservedPod:
    """One pod, read from what the API server gives."""

    name: str
    uid: str
    node: str
    ip: str
    is_ready: bool
    is_leaving: bool
    template_hash: str
    unschedulable: str
    """Why no node takes it; empty where one did."""
    engine: ContainerStatus
    sidecar: ContainerStatus
    scheduled_at: datetime | None = None
    """When a node took it."""
    started_in_s: float | None = None
    """From its creation to its readiness; None while it is not ready."""
    has_sandbox: bool = True
    """Whether its volumes are mounted and its network is made."""
    gates: tuple[str, ...] = ()
    """What keeps it from the scheduler, such as the admission of a queue."""
    is_canary: bool = False
    """It tries new images."""
    admin_tls: bool = False
    """Whether its own port 8001 speaks TLS; that of another pod of its service may not, yet."""

    @property
    def waits_for_volumes(self) -> bool:
        """Whether a node has it and cannot start its containers yet."""
        return bool(self.node) and not self.has_sandbox and not self.is_leaving

    @property
    def is_reachable(self) -> bool:
        """Whether its sidecar can be asked and told."""
        return bool(self.ip) and self.sidecar.is_running and not self.is_leaving


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Why a pod's containers cannot be started."""

    pod: str
    note: str
    """The kubelet's words."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a child that serving does not need could not be written."""

    reason: str
    """A condition's reason."""
    message: str


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that a decision may look at."""

    service: InferenceService
    children: Mapping[ObjectId, Manifest]
    pods: tuple[ObservedPod, ...]
    """Sorted by name; pods that are leaving are included."""
    report: ServiceReport | None
    """The conclusion of the tuner's last round."""
    now: datetime
    held_up: HeldUp | None = None
    """What keeps the first of the pods that wait for their volumes, where the kubelet has said."""
    lacks: tuple[Lack, ...] | None = None
    """What the last write of the extras missed; None where none was tried."""
    loading: PodLoading | None = None
    """Of the pod that has furthest to go; None where none loads, or none answers."""

    @property
    def deployment(self) -> Manifest | None:
        """The Deployment, once it exists."""
        return self.children.get(("Deployment", self.service.metadata.name))


def observe(
    watched: Watched, key: str, report: ServiceReport | None, now: datetime
) -> Observation | None:
    """Read one service; None where it is gone or going."""
    raw = watched.service(key)
    if raw is None or raw["metadata"].get("deletionTimestamp"):
        return None
    pods = sorted((_pod(pod) for pod in watched.pods(key)), key=lambda pod: pod.name)
    return Observation(
        service=InferenceService.read(raw),
        children={
            (child["kind"], child["metadata"]["name"]): child for child in watched.children(key)
        },
        pods=tuple(pods),
        report=report,
        now=now,
    )


@dataclass(frozen=True, slots=True)
class Observer:
    """Reads services as they are at present."""

    watched: Watched
    reports: Mapping[str, ServiceReport]
    """The tuner's last conclusion about each service."""
    now: Callable[[], datetime]

    def observe(self, key: str) -> Observation | None:
        """Read one service; None where it is gone or going."""
        return observe(self.watched, key, self.reports.get(key), self.now())


def _pod(raw: Mapping[str, Any]) -> ObservedPod:
    metadata, status = raw["metadata"], raw.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    return ObservedPod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        node=raw.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_leaving="deletionTimestamp" in metadata,
        template_hash=metadata.get("labels", {}).get(TEMPLATE_HASH, ""),
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        engine=_container(status.get("containerStatuses", ()), "engine"),
        sidecar=_container(status.get("initContainerStatuses", ()), "sidecar"),
        scheduled_at=_since(scheduled) if scheduled.get("status") == "True" else None,
        started_in_s=_started_in_s(metadata, conditions.get("Ready", _NO_STATE)),
        has_sandbox=conditions.get("PodReadyToStartContainers", {}).get("status") != "False",
        gates=tuple(gate["name"] for gate in raw.get("spec", {}).get("schedulingGates", ())),
        is_canary=CANARY in metadata.get("labels", {}),
        admin_tls=_admin_tls(raw.get("spec", _NO_STATE)),
    )


def _admin_tls(spec: Mapping[str, Any]) -> bool:
    ports = (
        port for container in spec.get("initContainers", ()) for port in container.get("ports", ())
    )
    return any(port.get("name") == ADMIN_TLS for port in ports)


def _since(condition: Mapping[str, Any]) -> datetime | None:
    changed_at = condition.get("lastTransitionTime")
    return datetime.fromisoformat(changed_at) if changed_at else None


def _started_in_s(metadata: Mapping[str, Any], ready: Mapping[str, Any]) -> float | None:
    created_at, ready_at = metadata.get("creationTimestamp"), _since(ready)
    if ready.get("status") != "True" or ready_at is None or not created_at:
        return None
    return (ready_at - datetime.fromisoformat(created_at)).total_seconds()


def _container(statuses: Iterable[Mapping[str, Any]], name: str) -> ContainerStatus:
    found = next((entry for entry in statuses if entry["name"] == name), None)
    if found is None:
        return ContainerStatus()
    state = found.get("state", _NO_STATE)
    ended = state.get("terminated") or found.get("lastState", _NO_STATE).get("terminated")
    waiting = state.get("waiting", _NO_STATE)
    return ContainerStatus(
        is_running="running" in state,
        is_ready=bool(found.get("ready")),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        restarts=found.get("restartCount", 0),
        last_exit=ended and _exit(ended),
        image_id=found.get("imageID", ""),
    )


def _exit(ended: Mapping[str, Any]) -> ContainerExit:
    return ContainerExit(
        ended.get("reason", ""), ended.get("exitCode", 0), ended.get("message", "")
    )
