"""Write the children by server-side apply under one field manager; nobody else writes them."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.errors import ConflictError, GoneError
from paceline_operator.field_managers import with_content_owned
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.observe import ObjectId, Observation
from paceline_operator.ownership import is_orphan
from paceline_operator.render.children import Children, token_secret
from paceline_operator.token_key import TokenKey

# Changed by others without a meaning for us, or by our own last write.
_NOT_OURS = ("resourceVersion", "managedFields", "generation", "selfLink")
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Applier:
    """Writes a child when it is to change, or was changed by others, since the last write."""

    cluster: KubernetesApi
    token_key: TokenKey
    check_leadership: Callable[[], None]
    """Raises before a write that another leader might be doing."""
    clock: Callable[[], float]
    _written: dict[tuple[str, ObjectId], tuple[str, str]] = field(init=False, default_factory=dict)
    """Two digests for each object: what was applied, and what the object then was."""
    _token_tried: dict[str, tuple[str, float]] = field(init=False, default_factory=dict)
    """By the service's key: its uid, and when the Secret of its token was last to be created."""
    _adopted: dict[str, list[str]] = field(init=False, default_factory=dict)
    """By the service's key: the orphans that got it as their owner, until somebody tells of it."""

    async def apply(self, observation: Observation, children: Children) -> dict[ObjectId, Manifest]:
        """Bring the children to what was rendered; return them as they are now."""
        service = observation.service
        found = dict(observation.children)
        is_there = False
        for manifest in children.wanted:
            which = (manifest["kind"], manifest["metadata"]["name"])
            # Where the watch shows none, one may be there that only lacks our labels.
            live = found.get(which) or await self.cluster.get(
                which[0], service.metadata.namespace, which[1]
            )
            if self._is_unowned(service, live) and not is_there:
                await self._check_is_there(service)
                is_there = True
            found[which] = await self._apply_one(service, manifest, live)
        for which in [one for one in found if children.is_unwanted(one)]:
            await self.delete_child(service, found.pop(which))
        return found

    async def apply_child(
        self, service: InferenceService, manifest: Manifest, live: Manifest | None
    ) -> Manifest:
        """Bring one child to what was rendered; return it as it is now.

        Raises NameTakenError or LeavingError where it is another's.
        """
        if self._is_unowned(service, live):
            await self._check_is_there(service)
        return await self._apply_one(service, manifest, live)

    async def delete_child(self, service: InferenceService, live: Manifest) -> None:
        """Delete one child; raises NameTakenError or LeavingError where it is another's."""
        is_orphan(service, live)
        self.check_leadership()
        await self.cluster.delete(live)

    async def secure_token(self, service: InferenceService, *, again_after_s: float) -> None:
        """Create the Secret of the service's runtime token, unless there is one.

        Whether its content is right only the pods can tell: Secrets are neither read nor watched.
        Once tried, it is tried again after `again_after_s`.
        """
        uid = service.metadata.uid
        tried_uid, tried_at = self._token_tried.get(service.key, ("", 0.0))
        if tried_uid != uid:
            self.forget(service.key)
        elif self.clock() - tried_at < again_after_s:
            return
        await self._check_is_there(service)
        self.check_leadership()
        with contextlib.suppress(ConflictError):
            await self.cluster.create(token_secret(service, self.token(service)))
            _log.info("%s: made the Secret of its token", service.key)
        self._token_tried[service.key] = (uid, self.clock())

    def token(self, service: InferenceService) -> str:
        """Give the service's runtime token."""
        return self.token_key.runtime_token(service.key)

    def take_adopted(self, key: str) -> tuple[str, ...]:
        """Name, once, the orphans that the service has adopted."""
        return tuple(self._adopted.pop(key, ()))

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._adopted.pop(key, None)
        for which in [one for one in self._written if one[0] == key]:
            del self._written[which]
        self._token_tried.pop(key, None)

    async def _apply_one(
        self, service: InferenceService, manifest: Manifest, live: Manifest | None
    ) -> Manifest:
        which = (service.key, (manifest["kind"], manifest["metadata"]["name"]))
        wanted = _digest(manifest)
        if live is not None and self._written.get(which) == (wanted, _digest(_essence(live))):
            return live
        live = await self._write(service, manifest, live)
        self._written[which] = (wanted, _digest(_essence(live)))
        return live

    def _is_unowned(self, service: InferenceService, live: Manifest | None) -> bool:
        """Whether a write makes or adopts the child; raises where it would take another's."""
        return live is None or is_orphan(service, live)

    async def _write(
        self, service: InferenceService, manifest: Manifest, live: Manifest | None
    ) -> Manifest:
        """Apply over the version that was seen: a write that comes late meets another's and fails.

        Where only the watch was late, the object is read and written once more.
        """
        is_adopted = live is not None and is_orphan(service, live)
        if is_adopted:
            live = await self._take_fields(manifest) or live
        self.check_leadership()
        try:
            written = await self.cluster.apply(at_version(manifest, live))
        except ConflictError:
            metadata = manifest["metadata"]
            live = await self.cluster.get(manifest["kind"], metadata["namespace"], metadata["name"])
            if live is None:
                raise
            is_adopted = self._is_unowned(service, live)
            if is_adopted:
                await self._check_is_there(service)
            self.check_leadership()
            written = await self.cluster.apply(at_version(manifest, live))
        if is_adopted:
            name = f"{manifest['kind']} {manifest['metadata']['name']}"
            _log.info("%s: has adopted %s", service.key, name)
            self._adopted.setdefault(service.key, []).append(name)
        return written

    async def _take_fields(self, manifest: Manifest) -> Manifest | None:
        """Become the only manager of an orphan's content; the watch does not tell who it is."""
        metadata = manifest["metadata"]
        live = await self.cluster.get(manifest["kind"], metadata["namespace"], metadata["name"])
        if live is None:
            return None
        entries = live["metadata"].get("managedFields") or []
        owned = with_content_owned(entries, manifest["apiVersion"])
        if owned == entries:
            return live
        self.check_leadership()
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


def _essence(live: Manifest) -> Manifest:
    """Strip what changes without us: status and the server's bookkeeping."""
    metadata = {key: value for key, value in live["metadata"].items() if key not in _NOT_OURS}
    return {key: value for key, value in live.items() if key != "status"} | {"metadata": metadata}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
