"""A pod as the decisions see it: the only reading of a raw pod."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_api.labels import TEMPLATE_HASH

_NO_STATE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Exit:
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
    last_exit: Exit | None = None
    image_id: str = ""


@dataclass(frozen=True, slots=True)
class PodStatus:
    """One pod."""

    name: str
    node: str
    ip: str
    is_ready: bool
    is_leaving: bool
    template_hash: str
    unschedulable: str
    """Why no node takes it; empty where one did."""
    engine: ContainerStatus
    sidecar: ContainerStatus

    @property
    def is_reachable(self) -> bool:
        """Whether its sidecar can be asked and told."""
        return bool(self.ip) and self.sidecar.is_running and not self.is_leaving


def read_pod(raw: Mapping[str, Any]) -> PodStatus:
    """Read a pod as the API server gives it."""
    metadata, status = raw["metadata"], raw.get("status", {})
    conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    return PodStatus(
        name=metadata["name"],
        node=raw.get("spec", {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        is_leaving="deletionTimestamp" in metadata,
        template_hash=metadata.get("labels", {}).get(TEMPLATE_HASH, ""),
        unschedulable=scheduled.get("message", "") if scheduled.get("status") == "False" else "",
        engine=_container(status.get("containerStatuses", ()), "engine"),
        sidecar=_container(status.get("initContainerStatuses", ()), "sidecar"),
    )


def _container(statuses: list[Mapping[str, Any]], name: str) -> ContainerStatus:
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


def _exit(ended: Mapping[str, Any]) -> Exit:
    return Exit(ended.get("reason", ""), ended.get("exitCode", 0), ended.get("message", ""))
