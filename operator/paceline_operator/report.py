"""Write status and events, only when they say something new."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from paceline_api.inference_service import GROUP, KIND, VERSION, InferenceService
from paceline_api.labels import Manifest
from paceline_api.status import Status
from paceline_operator.errors import ApiError, ConflictError
from paceline_operator.events import crd_outdated_event, news
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.metrics import Metrics

# Fields that hold measurements: a change of them alone waits.
_NUMBERS: Final = ("sla", "tuning", "loading")


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pruned:
    """A status that an outdated CRD has pruned."""

    sent: Manifest
    kept: Manifest


@dataclass(slots=True)
class Reporter:
    """The only writer of status and events."""

    cluster: KubernetesApi
    metrics: Metrics
    permit: Callable[[], Awaitable[None]]
    """Returns when a write may be done; raises where another leader might be doing it."""
    clock: Callable[[], float]
    numbers_interval_s: Callable[[], float]
    """How often numbers alone are told."""
    _written_at: dict[str, float] = field(init=False, default_factory=dict)
    _latest: dict[str, InferenceService] = field(init=False, default_factory=dict)
    """Each service as the API server answered our last write: the watch may still be behind it."""
    _pruned: dict[str, _Pruned] = field(init=False, default_factory=dict)
    """By the service's uid."""

    def freshest(self, service: InferenceService) -> InferenceService:
        """Give the service as our last write left it, where the watch has not seen that yet."""
        latest = self._latest.get(service.metadata.uid)
        if latest is None or latest.metadata.resource_version <= service.metadata.resource_version:
            return service
        return latest

    async def report(self, service: InferenceService, status: Status) -> None:
        """Write the status on a transition, or when its numbers are old enough."""
        uid, old, new = service.metadata.uid, _plain(service.status), _plain(status)
        if (pruned := self._pruned.get(uid)) is not None and pruned.kept == old:
            old = pruned.sent  # what the CRD does not know is dropped each time: no news
        if _without_times(old) == _without_times(new) or not self._is_due(service.key, old, new):
            return
        await self.permit()
        answer = await self._write(_manifest(service, new))
        self._latest[uid] = latest = InferenceService.read(answer)
        await self._note_pruned(service, _Pruned(new, _plain(latest.status)))
        self._written_at[service.key] = self.clock()
        self.metrics.status_writes.inc()
        for event in news(service, status):
            await self.tell(event)

    def numbers_are_due(self, key: str) -> bool:
        """Whether a status may be written for its numbers alone."""
        written_at = self._written_at.get(key)
        return written_at is None or self.clock() - written_at >= self.numbers_interval_s()

    async def tell(self, event: Manifest) -> None:
        """Write an event; a failure is ignored, as the status already says what matters."""
        await self.permit()
        with contextlib.suppress(ApiError):
            await self.cluster.create(event)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._written_at.pop(key, None)
        for uid in [uid for uid, latest in self._latest.items() if latest.key == key]:
            del self._latest[uid]
            self._pruned.pop(uid, None)

    async def _note_pruned(self, service: InferenceService, pruned: _Pruned) -> None:
        """Remember what was dropped, and tell of it once."""
        if pruned.sent == pruned.kept:
            self._pruned.pop(service.metadata.uid, None)
            return
        is_known = service.metadata.uid in self._pruned
        self._pruned[service.metadata.uid] = pruned
        if not is_known:
            dropped = [*dict.fromkeys(_dropped(pruned.sent, pruned.kept))]
            _log.warning("%s: the cluster's CRD drops %s", service.key, ", ".join(dropped))
            await self.tell(crd_outdated_event(service, dropped))

    def _is_due(self, key: str, old: Manifest, new: Manifest) -> bool:
        if _without_numbers(old) != _without_numbers(new):
            return True
        return self.numbers_are_due(key)

    async def _write(self, manifest: Manifest) -> Manifest:
        """Apply the status; a conflict is a watch that is late, and no error."""
        try:
            return await self.cluster.apply(manifest, subresource="status")
        except ConflictError:
            raise
        except ApiError:
            self.metrics.status_write_errors.inc()
            raise


def _plain(status: Status) -> Manifest:
    return _without_empty(status.model_dump(by_alias=True, exclude_none=True, mode="json"))


def _without_empty(found: Manifest) -> Manifest:
    """Leave out empty objects: applied over a filled one, the API server makes them null."""
    pruned = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in found.items()
    }
    return {key: value for key, value in pruned.items() if value != {}}


def _dropped(sent: Any, kept: Any, path: str = "status") -> Iterator[str]:
    """Name the fields that were sent and not kept, once for each item of a list."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            if key in kept:
                yield from _dropped(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(sent, list) and isinstance(kept, list):
        for sent_item, kept_item in zip(sent, kept, strict=False):
            yield from _dropped(sent_item, kept_item, f"{path}[]")


def _without_times(status: Manifest) -> Manifest:
    """Leave out what moves by itself: the window's end, and since when a phase is that is pruned.

    A write only because of it is not worth it.
    """
    sla, rollout = status.get("sla", {}), status.get("rollout", {})
    observed = {key: value for key, value in sla.get("observed", {}).items() if key != "windowEnd"}
    stands = {key: value for key, value in rollout.items() if key != "since"}
    return status | {"sla": sla | {"observed": observed}, "rollout": stands}


def _without_numbers(status: Manifest) -> dict[str, Any]:
    experiment = status.get("tuning", {}).get("experiment", {})
    # How an experiment stands is no number: a verdict is written at once.
    stands = {key: experiment.get(key) for key in ("name", "verdict", "candidatePods")}
    return {key: value for key, value in status.items() if key not in _NUMBERS} | {
        "experiment": stands
    }


def _manifest(service: InferenceService, status: Manifest) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        # With the uid a service of the same name, made anew meanwhile, is not written to; with the
        # version a status that was concluded from an older state does not cover a newer one.
        "metadata": {
            "name": service.metadata.name,
            "namespace": service.metadata.namespace,
            "uid": service.metadata.uid,
            "resourceVersion": str(service.metadata.resource_version),
        },
        "status": status,
    }
