"""Write the children that serving does not need; what stands in the way is told, not raised.

Kinds that a cluster need not have, such as the Prometheus Operator's, are not watched. Their
objects are read again from time to time instead, which also brings back what somebody changed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.apply import Applier
from paceline_operator.errors import ApiError, LeavingError, NameTakenError, WriteRefusedError
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.observe import Lack, ObjectId, Observation
from paceline_operator.render.extras import ADDED_KINDS, AddedKind, extras

_KINDS_TTL_S: Final = 60.0
"""How long the answer is cached which kinds the cluster serves."""
_RETRY_S: Final = 60.0
_REREAD_S: Final = 300.0
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached state of one such child."""

    uid: str
    """Of the service: one that is made again under the same name begins anew."""
    wanted: Manifest | None
    live: Manifest | None
    lack: Lack | None
    at: float
    """When it was last read, or refused."""

    def with_lack(self, wanted: Manifest | None, lack: Lack, now: float) -> "_Known":
        """Remember why it could not be written; nothing is lacking if it is not wanted."""
        return _Known(self.uid, wanted, None, lack if wanted is not None else None, now)


@dataclass(frozen=True, slots=True)
class _Served:
    """The kinds of one API that the cluster serves."""

    kinds: frozenset[str]
    at: float
    """When it was asked."""


@dataclass(slots=True)
class Extras:
    """Writes the optional children and caches their state, as no watch reports it."""

    cluster: KubernetesApi
    applier: Applier
    clock: Callable[[], float]
    _served: dict[str, _Served] = field(init=False, default_factory=dict)
    """By group and version."""
    _known: dict[tuple[str, ObjectId], _Known] = field(init=False, default_factory=dict)

    async def bring(self, observation: Observation, *, is_there: bool = False) -> tuple[Lack, ...]:
        """Write what differs; return what could not be written.

        `is_there` says that the service was asked for a moment ago, and was there.
        Raises ApiError where the API server did not answer, and GoneError with the service.
        """
        service = observation.service
        lacks = []
        for which, manifest in extras(service).items():
            known = self._known.get((service.key, which))
            if known is None or known.uid != service.metadata.uid:
                known = _Known(service.metadata.uid, None, None, None, -math.inf)
            if which[0] not in ADDED_KINDS:
                known = replace(known, live=observation.children.get(which))
            now_known = await self._bring(service, which, manifest, known, is_there=is_there)
            self._known[service.key, which] = now_known
            lacks.append(now_known.lack)
        return tuple(lack for lack in lacks if lack is not None)

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        for which in [one for one in self._known if one[0] == key]:
            del self._known[which]

    async def _bring(
        self,
        service: InferenceService,
        which: ObjectId,
        manifest: Manifest | None,
        known: _Known,
        *,
        is_there: bool,
    ) -> _Known:
        """Bring one of them; a refusal is tried again after a while, or when another is wanted."""
        now, added = self.clock(), ADDED_KINDS.get(which[0])
        is_settled = manifest is None or (known.lack is not None and now - known.at < _RETRY_S)
        if is_settled and known.wanted == manifest and known.at != -math.inf:
            return known  # all that there was is deleted, or was refused a moment ago
        if added is not None and which[0] not in await self._served_kinds(added.version):
            return known.with_lack(manifest, _missing_kind(which[0], added), now)
        live, at = known.live, known.at
        try:
            if added is not None and (live is None or now - at >= _REREAD_S):
                live = await self.cluster.get(which[0], service.metadata.namespace, which[1])
                at = now
            live = await self._write(service, manifest, live, is_there=is_there)
        except (LeavingError, NameTakenError, WriteRefusedError) as refusal:
            return known.with_lack(manifest, Lack(_reason(refusal), str(refusal)), now)
        except ApiError as problem:
            if problem.code != _NOT_FOUND or added is None:
                raise
            self._served.pop(added.version, None)  # its definition was deleted a moment ago
            return known.with_lack(manifest, _missing_kind(which[0], added), now)
        return replace(known, wanted=manifest, live=live, lack=None, at=at)

    async def _write(
        self,
        service: InferenceService,
        manifest: Manifest | None,
        live: Manifest | None,
        *,
        is_there: bool,
    ) -> Manifest | None:
        if manifest is not None:
            return await self.applier.apply_child(service, manifest, live, is_there=is_there)
        if live is not None:
            await self.applier.delete_child(service, live)
        return None

    async def _served_kinds(self, version: str) -> frozenset[str]:
        """Ask what the cluster has of an API, once a minute for all services."""
        known = self._served.get(version)
        if known is None or self.clock() - known.at >= _KINDS_TTL_S:
            known = _Served(await self.cluster.kinds(version), self.clock())
            self._served[version] = known
        return known.kinds


def _missing_kind(kind: str, added: AddedKind) -> Lack:
    message = f"the cluster has no {kind} ({added.version}): install {added.brought_by}"
    return Lack("KindMissing", message)


def _reason(refusal: Exception) -> str:
    if isinstance(refusal, WriteRefusedError):
        return "WriteRefused"
    return "NameTaken" if isinstance(refusal, NameTakenError) else "Progressing"
