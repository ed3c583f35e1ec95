"""Ask the pods that load their model how far they are."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from paceline_api.inference_service import InferenceService
from paceline_operator.admin_port import admin_target
from paceline_operator.observe import Observation, ObservedPod
from paceline_operator.pod_loading import PodLoading
from paceline_tuner.pods import PodError
from paceline_tuner.service_target import PodTarget

FETCHING: Final = "fetching"
"""The engine's word for the time in which it downloads."""
_TTL_S: Final = 5.0
_MAX_ASKED: Final = 16
"""How many pods are asked: of a thousand that start at once, this sample is enough."""


class LoadingClient(Protocol):
    """What a pod is asked before it can serve."""

    async def get_loading(self, pod: PodTarget) -> PodLoading | None:
        """Read how far its engine is; None where it does not load. Raises PodError."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    pods: tuple[ObservedPod, ...]
    loading: PodLoading | None
    at: float


@dataclass(slots=True)
class LoadingPods:
    """Remembers each answer for a moment: an event of a pod is no reason to ask all of them."""

    client: LoadingClient
    clock: Callable[[], float]
    _known: dict[str, _Known] = field(init=False, default_factory=dict)

    async def look(self, observation: Observation) -> Observation:
        """Add how far the pod is that has furthest to go."""
        key = observation.service.key
        pods = tuple(pod for pod in observation.pods if _is_loading(pod))[:_MAX_ASKED]
        known = self._known.get(key)
        if not pods:
            self._known.pop(key, None)
            return observation
        if known is None or known.pods != pods or self.clock() - known.at >= _TTL_S:
            known = _Known(pods, await self._ask(observation.service, pods), self.clock())
            self._known[key] = known
        return replace(observation, loading=known.loading)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._known.pop(key, None)

    async def _ask(
        self, service: InferenceService, pods: tuple[ObservedPod, ...]
    ) -> PodLoading | None:
        answers = await asyncio.gather(*(self._ask_one(service, pod) for pod in pods))
        found = [answer for answer in answers if answer is not None]
        return min(found, key=_how_far, default=None)

    async def _ask_one(self, service: InferenceService, pod: ObservedPod) -> PodLoading | None:
        # Health needs no token: none is sent to a pod that may not be ours any more.
        target = admin_target(service, pod, token="")
        try:
            return await self.client.get_loading(target)
        except PodError:
            return None  # it is asked again in a moment


def _is_loading(pod: ObservedPod) -> bool:
    return pod.is_reachable and pod.engine.is_running and not pod.is_ready


def _how_far(loading: PodLoading) -> tuple[bool, float]:
    return loading.stage != FETCHING, loading.fraction
