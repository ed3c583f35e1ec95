"""A Kubernetes API in memory, for what a test wants to go wrong."""

from base64 import b64encode
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from paceline_api.labels import Manifest
from paceline_operator.errors import ApiError, ConflictError
from paceline_operator.kubernetes_api import RESOURCES

ObjectKey = tuple[str, str]


@dataclass(slots=True)
class FakeCluster:
    """Keeps whole objects; a write bumps the version only when it changes something."""

    objects: dict[ObjectKey, Manifest] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    """`verb Kind/name[/subresource]`, in their order."""
    finds: list[str] = field(default_factory=list)
    """`Kind field=value,...` of each list by a field selector."""
    num_lists: int = 0
    """Of versions; those that failed count."""
    is_reachable: bool = True
    refusals: dict[str, ApiError] = field(default_factory=dict)
    """By kind: raised when an object of it is created or applied."""
    served_kinds: frozenset[str] = frozenset()
    """The kinds that it has of those that a cluster need not have."""
    reads: list[str] = field(default_factory=list)
    """`verb what`, in their order."""
    unknown_status: set[str] = field(default_factory=set)
    """Paths such as `conditions[].reason` that the CRD does not know: they are dropped silently."""
    _version: int = 100

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self._reach("get", name)
        self.reads.append(f"get {kind}/{name}")
        found = self.objects.get((kind, name))
        assert found is None or found["metadata"]["namespace"] == namespace
        return deepcopy(found)

    async def versions(self, kind: str, namespace: str, *, labels: str = "") -> dict[str, int]:
        self.num_lists += 1
        self._reach("list", kind)
        wanted = [label.partition("=")[0] for label in labels.split(",") if label]
        found = [
            one["metadata"]
            for (of, _), one in self.objects.items()
            if of == kind and all(label in one["metadata"].get("labels", {}) for label in wanted)
        ]
        return {
            f"{metadata['namespace']}/{metadata['name']}": int(metadata["resourceVersion"])
            for metadata in found
            if namespace in {"", metadata["namespace"]}
        }

    async def find(self, kind: str, namespace: str, *, fields: str) -> list[Manifest]:
        self._reach("list", kind)
        self.finds.append(f"{kind} {fields}")
        wanted = [field.split("=") for field in fields.split(",")]
        return [
            deepcopy(one)
            for (of, _), one in self.objects.items()
            if of == kind
            and one["metadata"]["namespace"] == namespace
            and all(_at(one, path) == value for path, value in wanted)
        ]

    async def kinds(self, version: str) -> frozenset[str]:
        self._reach("get", version)
        self.reads.append(f"get {version}")
        return frozenset(kind for kind in self.served_kinds if RESOURCES[kind][0] == version)

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        kind, name = _key(manifest)
        self._reach("apply", name)
        if kind in self.refusals:
            raise self.refusals[kind]
        found = self.objects.get((kind, name), {"metadata": {}})["metadata"]
        wanted = manifest["metadata"].get("resourceVersion")
        if wanted and wanted != found.get("resourceVersion"):
            raise ConflictError("apply", name, 409, "changed")
        suffix = f"/{subresource}" if subresource else ""
        self.writes.append(f"apply {kind}/{name}{suffix}")
        fresh: Manifest = {"metadata": {"uid": f"uid-{kind}-{name}"}}
        old = deepcopy(self.objects.get((kind, name), fresh))
        if subresource:
            new = old | {subresource: _without(manifest[subresource], self.unknown_status)}
        else:
            metadata = old["metadata"] | deepcopy(manifest["metadata"])
            new = old | deepcopy(manifest) | {"metadata": metadata}
        if texts := new.get("stringData"):
            encoded = {key: b64encode(text.encode()).decode() for key, text in texts.items()}
            new["data"] = (new.get("data") or {}) | encoded
        return self._store(new)

    async def merge(self, manifest: Manifest) -> Manifest:
        kind, name = _key(manifest)
        self._reach("patch", name)
        self.writes.append(f"patch {kind}/{name}")
        old = deepcopy(self.objects[kind, name])
        return self._store(old | {"metadata": old["metadata"] | deepcopy(manifest["metadata"])})

    async def create(self, manifest: Manifest) -> Manifest:
        kind, name = _key(manifest)
        self._reach("create", name)
        if kind in self.refusals:
            raise self.refusals[kind]
        if (kind, name) in self.objects:
            raise ConflictError("create", name, 409, "exists")
        self.writes.append(f"create {kind}/{name}")
        return self._store(deepcopy(manifest))

    async def replace(self, manifest: Manifest) -> Manifest:
        kind, name = _key(manifest)
        self._reach("update", name)
        if (kind, name) not in self.objects:
            raise ApiError("update", name, 404, "not found")
        version = self.objects[kind, name]["metadata"]["resourceVersion"]
        if manifest["metadata"].get("resourceVersion") != version:
            raise ConflictError("update", name, 409, "changed")
        self.writes.append(f"update {kind}/{name}")
        return self._store(deepcopy(manifest))

    async def delete(self, manifest: Manifest) -> None:
        kind, name = _key(manifest)
        self._reach("delete", name)
        self.writes.append(f"delete {kind}/{name}")
        self.objects.pop((kind, name), None)

    def _store(self, manifest: Manifest) -> Manifest:
        key = _key(manifest)
        old = self.objects.get(key)
        if old is None or _bare(old) != _bare(manifest):
            self._version += 1
            manifest["metadata"]["resourceVersion"] = str(self._version)
            is_other = old is not None and old.get("spec") != manifest.get("spec")
            generation = manifest["metadata"].get("generation", 1)
            manifest["metadata"]["generation"] = generation + 1 if is_other else generation
            self.objects[key] = manifest
        return deepcopy(self.objects[key])

    def _reach(self, verb: str, what: str) -> None:
        if not self.is_reachable:
            raise ApiError(verb, what, 0, "unreachable")


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key, {})
    return value


def _without(value: Any, unknown: set[str], path: str = "") -> Any:
    if isinstance(value, dict):
        paths = {key: f"{path}.{key}".removeprefix(".") for key in value}
        known = {key: each for key, each in value.items() if paths[key] not in unknown}
        return {key: _without(each, unknown, paths[key]) for key, each in known.items()}
    if isinstance(value, list):
        return [_without(each, unknown, f"{path}[]") for each in value]
    return value


def _key(manifest: Manifest) -> ObjectKey:
    return manifest["kind"], manifest["metadata"]["name"]


def _bare(manifest: Manifest) -> Manifest:
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "resourceVersion"}
    return manifest | {"metadata": metadata}
