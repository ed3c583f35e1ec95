"""One reading of what the watches know about a service -> Observed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.pod_status import PodStatus, read_pod
from paceline_tuner.service_report import ServiceReport

ObjectId = tuple[str, str]
"""Kind and name, within the service's namespace."""


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


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a decision may look at."""

    service: InferenceService
    children: Mapping[ObjectId, Manifest]
    pods: tuple[PodStatus, ...]
    """By name; those that are leaving are included."""
    report: ServiceReport | None
    """Of the tuner's last round."""
    now: datetime

    @property
    def deployment(self) -> Manifest | None:
        """The Deployment, once it exists."""
        return self.children.get(("Deployment", self.service.metadata.name))


def observe(
    watched: Watched, key: str, report: ServiceReport | None, now: datetime
) -> Observed | None:
    """Read one service; None where it is gone or going."""
    raw = watched.service(key)
    if raw is None or raw["metadata"].get("deletionTimestamp"):
        return None
    pods = sorted((read_pod(pod) for pod in watched.pods(key)), key=lambda pod: pod.name)
    return Observed(
        service=InferenceService.read(raw),
        children={
            (child["kind"], child["metadata"]["name"]): child for child in watched.children(key)
        },
        pods=tuple(pods),
        report=report,
        now=now,
    )
