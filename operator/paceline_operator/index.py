"""What the watches have told of services, their children and their pods, by service.

kopf's own indexes hold every object back until all are indexed, and wake all that wait for each
that is: of nine thousand objects that takes a whole core for a minute.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from paceline_api.labels import Manifest
from paceline_operator.compact import compact
from paceline_operator.field_managers import is_of_creation

_POD = "Pod"


@dataclass(slots=True)
class Index:
    """`Watched`, fed event by event."""

    _services: dict[str, Manifest] = field(init=False, default_factory=dict)
    _owned: dict[str, dict[str, Manifest]] = field(init=False, default_factory=dict)
    """Children and pods, by the service's key and their own uid."""
    _service_of: dict[str, str] = field(init=False, default_factory=dict)
    """The service's key of each of them, by uid."""

    def put_service(self, key: str, live: Manifest) -> None:
        """Keep a service as it is now; a list that lags behind takes nothing back."""
        if not _is_older(live, self._services.get(key)):
            self._services[key] = plain(live)

    def drop_service(self, key: str, uid: str) -> None:
        """Forget a service that is gone, and not the one that has its name since."""
        known = self._services.get(key)
        if known is not None and known["metadata"]["uid"] == uid:
            del self._services[key]

    def put_owned(self, key: str, live: Manifest) -> None:
        """Keep a child or pod of a service; labels may have made it another's."""
        uid = live["metadata"]["uid"]
        known = self._owned.get(self._service_of.get(uid, ""), {}).get(uid)
        if _is_older(live, known):
            return
        self.drop_owned(uid)
        self._owned.setdefault(key, {})[uid] = plain(live)
        self._service_of[uid] = key

    def drop_owned(self, uid: str) -> str:
        """Forget what is gone, or nobody's any more; return whose it was, if anybody's."""
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
        return self._services.get(key)

    def children(self, key: str) -> Iterable[Manifest]:
        """Give the objects that carry our labels for it."""
        return [one for one in self._of(key) if one["kind"] != _POD]

    def pods(self, key: str) -> Iterable[Manifest]:
        """Give its pods."""
        return [one for one in self._of(key) if one["kind"] == _POD]

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        """Give all children and pods of all services, each with its kind."""
        return [(one["kind"], one) for found in self._owned.values() for one in found.values()]

    def _of(self, key: str) -> Iterable[Manifest]:
        return self._owned.get(key, {}).values()


def plain(live: Manifest) -> Manifest:
    """Copy an object without the bookkeeping of field managers, which can outweigh the rest.

    Only that our POST manages something is remembered: apply must take that over.
    """
    metadata = dict(live["metadata"])
    entries = metadata.pop("managedFields", None) or ()
    if of_creation := [_bare(entry) for entry in entries if is_of_creation(entry)]:
        metadata["managedFields"] = of_creation
    copied: Manifest = compact(dict(live) | {"metadata": metadata})
    return copied


def _bare(entry: Manifest) -> Manifest:
    return {"manager": entry["manager"], "operation": entry["operation"]}


def _is_older(live: Manifest, known: Manifest | None) -> bool:
    """Whether another version of the same object was told before, and is newer."""
    if known is None or known["metadata"]["uid"] != live["metadata"]["uid"]:
        return False
    return int(live["metadata"]["resourceVersion"]) < int(known["metadata"]["resourceVersion"])
