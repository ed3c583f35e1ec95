"""Write the children: created where there are none, else by server-side apply as one field manager.

A POST never overwrites an object of somebody else: the existing object is read if it conflicts.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.applied import digest, essence, holds, with_digest
from paceline_operator.errors import ConflictError, GoneError
from paceline_operator.field_managers import was_created_by_us, with_content_owned
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.observe import ObjectId, Observation
from paceline_operator.ownership import is_orphan
from paceline_operator.render.children import Children, token_secret
from paceline_operator.token_key import TokenKey

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Applier:
    """Writes a child when it is not as it was rendered."""

    cluster: KubernetesApi
    token_key: TokenKey
    permit: Callable[[], Awaitable[None]]
    """Returns when a write may be done; raises where another leader might be doing it."""
    clock: Callable[[], float]
    _altered: dict[tuple[str, ObjectId], tuple[str, str]] = field(init=False, default_factory=dict)
    """Of objects that the API server stores differently from what was written: the digests of
    what was written and of what was stored."""
    _token_tried: dict[str, tuple[str, float]] = field(init=False, default_factory=dict)
    """By the service's key: its uid, and when its token's Secret was last tried to be created."""
    _adopted: dict[str, list[str]] = field(init=False, default_factory=dict)
    """By the service's key: orphans that it has adopted, until an event reports them."""

    async def apply(
        self, observation: Observation, children: Children, *, is_there: bool = False
    ) -> dict[ObjectId, Manifest]:
        """Bring the children to what was rendered; return them as they are now.

        `is_there` says that the service was asked for a moment ago, and was there.
        """
        service = observation.service
        found = dict(observation.children)
        lives = [found.get(_which(manifest)) for manifest in children.wanted]
        if not is_there and any(self._is_unowned(service, live) for live in lives):
            await self._check_is_there(service)
        *others, deployment = zip(children.wanted, lives, strict=True)
        # The Deployment comes last: its pods need the others, which are written concurrently.
        await self._apply_all(service, others, found)
        await self._apply_all(service, [deployment], found)
        for which in [one for one in found if children.is_unwanted(one)]:
            await self.delete_child(service, found.pop(which))
        return found

    async def apply_child(
        self,
        service: InferenceService,
        manifest: Manifest,
        live: Manifest | None,
        *,
        is_there: bool = False,
    ) -> Manifest:
        """Bring one child to what was rendered; return it as it is now.

        Raises NameTakenError or LeavingError where it is another's.
        """
        if not is_there and self._is_unowned(service, live):
            await self._check_is_there(service)
        return await self._apply_one(service, manifest, live)

    async def delete_child(self, service: InferenceService, live: Manifest) -> None:
        """Delete one child; raises NameTakenError or LeavingError where it is another's."""
        is_orphan(service, live)
        await self.permit()
        await self.cluster.delete(live)

    async def secure_token(self, service: InferenceService, *, again_after_s: float) -> bool:
        """Create the Secret of the service's runtime token, unless there is one.

        Returns whether the service was asked for, and was there.

        Whether its content is right only the pods can tell: Secrets are neither read nor watched.
        Once tried, it is tried again after `again_after_s`; where that is infinite it is not tried.
        """
        if math.isinf(again_after_s):
            return False
        uid = service.metadata.uid
        tried_uid, tried_at = self._token_tried.get(service.key, ("", 0.0))
        if tried_uid != uid:
            self.forget(service.key)
        elif self.clock() - tried_at < again_after_s:
            return False
        await self._check_is_there(service)
        await self.permit()
        with contextlib.suppress(ConflictError):
            await self.cluster.create(token_secret(service, self.token(service)))
            _log.info("%s: made the Secret of its token", service.key)
        self._token_tried[service.key] = (uid, self.clock())
        return True

    def token(self, service: InferenceService) -> str:
        """Give the service's runtime token."""
        return self.token_key.runtime_token(service.key)

    def take_adopted(self, key: str) -> tuple[str, ...]:
        """Name, once, the orphans that the service has adopted."""
        return tuple(self._adopted.pop(key, ()))

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._adopted.pop(key, None)
        for which in [one for one in self._altered if one[0] == key]:
            del self._altered[which]
        self._token_tried.pop(key, None)

    async def _apply_all(
        self,
        service: InferenceService,
        wanted: Iterable[tuple[Manifest, Manifest | None]],
        found: dict[ObjectId, Manifest],
    ) -> None:
        """Bring each, and note how it is now; raises the first error once all are done."""
        pairs = list(wanted)
        brought = await asyncio.gather(
            *(self._apply_one(service, manifest, live) for manifest, live in pairs),
            return_exceptions=True,
        )
        for (manifest, _), now in zip(pairs, brought, strict=True):
            if isinstance(now, BaseException):
                raise now
            found[_which(manifest)] = now

    async def _apply_one(
        self, service: InferenceService, manifest: Manifest, live: Manifest | None
    ) -> Manifest:
        which = (service.key, _which(manifest))
        wanted = with_digest(manifest)
        if live is not None and self._is_as_wanted(which, wanted, live):
            return live
        live = await self._write(service, wanted, live)
        if holds(live, wanted):
            self._altered.pop(which, None)
        else:
            self._altered[which] = digest(wanted), digest(essence(live))
        return live

    def _is_as_wanted(self, which: tuple[str, ObjectId], wanted: Manifest, live: Manifest) -> bool:
        if holds(live, wanted):
            return True
        altered = self._altered.get(which)
        return altered is not None and altered == (digest(wanted), digest(essence(live)))

    def _is_unowned(self, service: InferenceService, live: Manifest | None) -> bool:
        """Whether a write makes or adopts the child; raises where it would take another's."""
        return live is None or is_orphan(service, live)

    async def _write(
        self, service: InferenceService, manifest: Manifest, live: Manifest | None
    ) -> Manifest:
        """Apply to the version that was seen: a late write conflicts and overwrites nothing.

        Where only the watch was late, the object is read and written once more.
        """
        if live is None:
            await self.permit()
            try:
                return await self.cluster.create(manifest)
            except ConflictError:
                live = await self._met(service, manifest)
        is_adopted = is_orphan(service, live)
        if is_adopted or was_created_by_us(live):
            live = await self._take_fields(manifest) or live
        await self.permit()
        try:
            written = await self.cluster.apply(at_version(manifest, live))
        except ConflictError:
            live = await self._met(service, manifest)
            is_adopted = is_orphan(service, live)
            await self.permit()
            written = await self.cluster.apply(at_version(manifest, live))
        if is_adopted:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            _log.info("%s: has adopted %s", service.key, name)
            self._adopted.setdefault(service.key, []).append(name)
        return written

    async def _met(self, service: InferenceService, manifest: Manifest) -> Manifest:
        """Read an object that the watch has yet to report; raises ConflictError if it is gone."""
        metadata = manifest["metadata"]
        live = await self.cluster.get(manifest["kind"], metadata["namespace"], metadata["name"])
        if live is None:
            name = f"{manifest['kind']}/{metadata['name']}"
            raise ConflictError("apply", name, 409, "it was created and deleted meanwhile")
        if self._is_unowned(service, live):
            await self._check_is_there(service)
        return live

    async def _take_fields(self, manifest: Manifest) -> Manifest | None:
        """Take over all content from other field managers, which watched objects do not show."""
        metadata = manifest["metadata"]
        live = await self.cluster.get(manifest["kind"], metadata["namespace"], metadata["name"])
        if live is None:
            return None
        entries = live["metadata"].get("managedFields") or []
        owned = with_content_owned(entries, manifest["apiVersion"])
        if owned == entries:
            return live
        await self.permit()
        named = {name: metadata[name] for name in ("name", "namespace")}
        bare = {"kind": manifest["kind"], "metadata": named | {"managedFields": owned}}
        return await self.cluster.merge(at_version(bare, live))

    async def _check_is_there(self, service: InferenceService) -> None:
        """Raise GoneError before a child gets an owner that is gone: it would be collected.

        A watch that begins anew never speaks of what vanished while it was away.
        """
        name, namespace = service.metadata.name, service.metadata.namespace
        live = await self.cluster.get("InferenceService", namespace, name)
        metadata = {} if live is None else live["metadata"]
        is_going = "deletionTimestamp" in metadata
        if metadata.get("uid") != service.metadata.uid or is_going:
            raise GoneError(service.key)


def at_version(manifest: Manifest, live: Manifest | None) -> Manifest:
    """Let the API server refuse the manifest where the object is not as it was seen."""
    if live is None:
        return manifest
    version = {"resourceVersion": live["metadata"]["resourceVersion"]}
    return manifest | {"metadata": manifest["metadata"] | version}


def _which(manifest: Manifest) -> ObjectId:
    return manifest["kind"], manifest["metadata"]["name"]
