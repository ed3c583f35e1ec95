"""Whether the cluster is calm again after a fault. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]

REPLICAS: Final = 2
"""Replicas of the service, and of the operator."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The replica that the Lease names, as its own metrics show it."""

    process: str
    """The id of its container: counters begin anew with each."""
    is_leading: bool
    num_rounds: float
    """Tuning rounds that ended well."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One look at the cluster."""

    service: Json
    pods: list[Json]
    operators: list[Json]
    leader: Leader | None
    """None where the Lease has no holder that lives and answers."""
    deaf: str = ""
    """Which of Kubernetes' own parts does not hear what changes; empty where all do."""


@dataclass(slots=True)
class Waiting:
    """Judges one look after the other, from a fault to its end."""

    killed: str = ""
    """The container id that must not be there any more."""
    _first_rounds: dict[str, float] = field(default_factory=dict)

    def why_not(self, seen: Seen) -> str:
        """Say what is missing; empty when it is calm."""
        return next(self._lacks(seen), "")

    def _lacks(self, seen: Seen) -> Iterator[str]:
        if self.killed in {container["containerID"] for container in _containers(seen)}:
            yield "what was killed still counts as running"
        if not is_ready(seen.service) or _is_old(seen.service):
            yield "the service is not Ready"
        if not _all_ready(seen.pods):
            yield "not every pod is ready"
        if not _all_ready(seen.operators):
            yield "not every operator is ready"
        if seen.deaf:
            yield seen.deaf
        leader = seen.leader
        if leader is None or not leader.is_leading:
            yield "no operator leads"
        elif leader.num_rounds <= self._first_rounds.setdefault(leader.process, leader.num_rounds):
            yield "the leader has done no tuning round"


def is_ready(owner: Mapping[str, Any]) -> bool:
    """Whether a pod's or a service's condition `Ready` is true."""
    conditions = owner.get("status", {}).get("conditions", [])
    return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def statuses(pod: Json) -> Iterator[Json]:
    """Yield the status of each container that has started once."""
    status = pod.get("status", {})
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from (found for found in status.get(kind, []) if found.get("containerID"))


def _is_old(service: Json) -> bool:
    observed = service.get("status", {}).get("observedGeneration")
    return bool(observed != service["metadata"]["generation"])


def _all_ready(pods: list[Json]) -> bool:
    staying = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return len(pods) == len(staying) == REPLICAS and all(map(is_ready, staying))


def _containers(seen: Seen) -> Iterator[Json]:
    for pod in (*seen.pods, *seen.operators):
        yield from (found for found in statuses(pod) if "running" in found.get("state", {}))
