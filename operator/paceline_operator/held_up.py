"""Find why a pod's containers cannot even start: only the kubelet's events tell.

A Secret that is missing, or a volume that cannot be mounted, leaves no trace in a pod's status.
Watching Secrets, or all events, would be a right and a load for a rare moment; so the events of one
pod are listed, and only once it has been held up for a while.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from paceline_operator.errors import ApiError
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.observe import HeldUp, Observation, ObservedPod

_AFTER: Final = timedelta(seconds=10)
"""Mounting takes a second or two."""
_AGAIN_S: Final = 15.0
_REASONS: Final = frozenset({"FailedMount", "FailedAttachVolume"})

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class HeldUpPods:
    """Asks for one pod of a service at a time, and seldom."""

    cluster: KubernetesApi
    clock: Callable[[], float]
    _asked: dict[str, tuple[str, float, HeldUp | None]] = field(init=False, default_factory=dict)
    """By the service's key: which pod, when, and the answer."""

    async def explain(self, observation: Observation) -> Observation:
        """Add what holds up the first pod that waits for its volumes, if one does."""
        key, now = observation.service.key, observation.now
        waiting = [
            pod
            for pod in observation.pods
            if pod.waits_for_volumes and pod.scheduled_at and now - pod.scheduled_at >= _AFTER
        ]
        if not waiting:
            self.forget(key)
            return observation
        pod = waiting[0]
        asked_pod, asked_at, answer = self._asked.get(key, ("", 0.0, None))
        if asked_pod != pod.uid or self.clock() - asked_at >= _AGAIN_S:
            answer = await self._ask(observation.service.metadata.namespace, pod)
            self._asked[key] = (pod.uid, self.clock(), answer)
        return replace(observation, held_up=answer)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service."""
        self._asked.pop(key, None)

    async def _ask(self, namespace: str, pod: ObservedPod) -> HeldUp | None:
        try:
            events = await self.cluster.find(
                "Event", namespace, fields=f"regarding.uid={pod.uid},type=Warning"
            )
        except ApiError as problem:
            _log.warning("events of pod %s/%s: %s", namespace, pod.name, problem)
            return None
        told = [event for event in events if event.get("reason") in _REASONS]
        if not told:
            return None
        return HeldUp(pod.name, str(max(told, key=_last_seen).get("note") or ""))


def _last_seen(event: dict[str, Any]) -> str:
    """Read when it was told last; RFC 3339 sorts as text. The kubelet fills the older fields."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("deprecatedLastTimestamp")
        or event.get("eventTime")
        or ""
    )
