"""A cache of all watched services, children and pods, indexed by service.

kopf's own indexes block every handler until all objects are indexed, and wake all waiters for each
object: with nine thousand objects that keeps a core busy for a minute.

Each object is kept as MessagePack and decoded for each caller: dictionaries were most of the
operator's memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from paceline_api.labels import Manifest
from paceline_operator.field_managers import is_of_creation

_POD: Final = "Pod"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict).decode


@dataclass(frozen=True, slots=True)
class _Packed:
    """A service, or a child or pod of one."""

    kind: str
    uid: str
    namespace: str
    name: str
    version: int
    body: bytes

    @classmethod
    def of(cls, live: Manifest) -> "_Packed":
        metadata, body = live["metadata"], _encode(_without_bookkeeping(live))
        names = (metadata.get("namespace", ""), metadata.get("name", ""))
        return cls(live["kind"], metadata["uid"], *names, _version(live), body)

    @property
    def metadata(self) -> Manifest:
        """Its uid, namespace, name and version, as Kubernetes writes them."""
        return {
            "uid": self.uid,
            "namespace": self.namespace,
            "name": self.name,
            "resourceVersion": str(self.version),
        }

    def unpacked(self) -> Manifest:
        """Decode a new copy, which the caller may keep and change."""
        return _decode(self.body)


@dataclass(slots=True)
class Index:
    """`Watched`, fed event by event."""

    _services: dict[str, _Packed] = field(init=False, default_factory=dict)
    _owned: dict[str, dict[str, _Packed]] = field(init=False, default_factory=dict)
    """Children and pods, by the service's key and their own uid."""
    _service_of: dict[str, str] = field(init=False, default_factory=dict)
    """The service's key of each of them, by uid."""

    def put_service(self, key: str, live: Manifest) -> None:
        """Store a service; an older version, as from a stale list, is ignored."""
        known = self._services.get(key)
        packed = _Packed.of(live)
        if known is None or known.uid != packed.uid or packed.version >= known.version:
            self._services[key] = packed

    def drop_service(self, key: str, uid: str) -> None:
        """Drop a deleted service, unless a newer one (another uid) already has its name."""
        known = self._services.get(key)
        if known is not None and known.uid == uid:
            del self._services[key]

    def put_owned(self, key: str, live: Manifest) -> None:
        """Store a child or pod; changed labels may move it to another service."""
        uid = live["metadata"]["uid"]
        known = self._owned.get(self._service_of.get(uid, ""), {}).get(uid)
        if known is not None and _version(live) < known.version:
            return
        self.drop_owned(uid)
        self._owned.setdefault(key, {})[uid] = _Packed.of(live)
        self._service_of[uid] = key

    def drop_owned(self, uid: str) -> str:
        """Drop a deleted or unlabelled object; return its service's key, empty if it had none."""
        key = self._service_of.pop(uid, "")
        if key:
            del self._owned[key][uid]
            if not self._owned[key]:
                del self._owned[key]
        return key

    def keys(self) -> Iterable[str]:
        """Name every InferenceService."""
        return [*self._services]

    def service(self, key: str) -> Manifest | None:
        """Give the InferenceService itself."""
        found = self._services.get(key)
        return None if found is None else found.unpacked()

    def children(self, key: str) -> Iterable[Manifest]:
        """Give the objects that carry our labels for it."""
        return [one.unpacked() for one in self._of(key) if one.kind != _POD]

    def pods(self, key: str) -> Iterable[Manifest]:
        """Give its pods."""
        return [one.unpacked() for one in self._of(key) if one.kind == _POD]

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        """Give the kind and metadata of all children and pods of all services."""
        packed = [one for found in self._owned.values() for one in found.values()]
        return [(one.kind, {"metadata": one.metadata}) for one in packed]

    def _of(self, key: str) -> Iterable[_Packed]:
        return self._owned.get(key, {}).values()


def _without_bookkeeping(live: Manifest) -> Manifest:
    """Leave out what field managers keep of themselves, which can outweigh the rest.

    Only that our POST manages something is remembered: apply must take that over.
    """
    metadata = dict(live["metadata"])
    entries = metadata.pop("managedFields", None) or ()
    if of_creation := [_bare(entry) for entry in entries if is_of_creation(entry)]:
        metadata["managedFields"] = of_creation
    return dict(live) | {"metadata": metadata}


def _bare(entry: Manifest) -> Manifest:
    return {"manager": entry["manager"], "operation": entry["operation"]}


def _version(live: Manifest) -> int:
    return int(live["metadata"]["resourceVersion"])
