"""The manifest file: read, checked as the API server would, and compared with what is served."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paceline_api.hashes import changed_fields
from paceline_api.inference_service import KIND, InferenceService, Spec
from paceline_api.part import OnChange, changes
from paceline_api.validate import InvalidManifestError, validate
from paceline_cli.errors import LocalError

# Local mode has no objects around the pods: it applies a pause at once, like a hot field.
_APPLIED_WHILE_SERVING = (
    *(path[0] for path, on_change in changes(Spec) if on_change is OnChange.HOT),
    "paused",
)
_NEEDS_A_CLUSTER = ("oci://", "pvc://")


class ManifestError(LocalError):
    """The file cannot be served; the message is a sentence that names file, field and rule."""


@dataclass(frozen=True, slots=True)
class Difference:
    """What a new version of the file asks for, against what is served."""

    is_hot: bool
    """Something that is applied while serving has changed."""
    cold_fields: tuple[str, ...]
    """Changed fields under `spec` that only a restart can apply."""


def read(path: Path) -> InferenceService:
    """Read the one InferenceService of a YAML file, wherever it can be served."""
    try:
        return validate(declared(path))
    except InvalidManifestError as problem:
        raise ManifestError(f"{path}: {problem}") from problem


def declared(path: Path) -> dict[str, Any]:
    """Read the one InferenceService of a YAML file as it stands there."""
    return _only_service(path, _documents(path))


def load(path: Path) -> InferenceService:
    """Read the one InferenceService of a YAML file, which this machine can serve."""
    service = read(path)
    uris = {"model.uri": service.spec.model.uri}
    if draft := service.spec.engine.speculative.draft_model_uri:
        uris["engine.speculative.draftModelUri"] = draft
    for field, uri in uris.items():
        if uri.startswith(_NEEDS_A_CLUSTER):
            raise ManifestError(
                f"{path}: spec.{field}: {uri} needs a cluster;"
                " on this machine use builtin://, file:// or hf://"
            )
    for index, adapter in enumerate(service.spec.adapters or ()):
        if adapter.uri.startswith(_NEEDS_A_CLUSTER):
            raise ManifestError(
                f"{path}: spec.adapters[{index}].uri: {adapter.uri} needs a cluster;"
                " on this machine use file:// or hf://"
            )
    return service


def compare(served: Spec, wanted: Spec) -> Difference:
    """Tell hot changes from cold ones, by the same fields that decide it in a cluster."""
    is_hot = bool(changed_fields(served, wanted, OnChange.HOT)) or served.paused != wanted.paused
    return Difference(is_hot=is_hot, cold_fields=changed_fields(served, wanted, OnChange.COLD))


def with_hot_fields(served: Spec, wanted: Spec) -> Spec:
    """What is served, with the hot fields of `wanted`."""
    update = {field: getattr(wanted, field) for field in _APPLIED_WHILE_SERVING}
    return served.model_copy(update=update)


def _documents(path: Path) -> list[Any]:
    try:
        return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except FileNotFoundError as problem:
        raise ManifestError(f"{path}: no such file") from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise ManifestError(f"{path}: cannot be read: {problem}") from problem
    except yaml.YAMLError as problem:
        raise ManifestError(f"{path}: not YAML: {problem}") from problem


def _only_service(path: Path, documents: list[Any]) -> dict[str, Any]:
    objects = [document for document in documents if isinstance(document, dict)]
    services = [item for item in objects if item.get("kind") == KIND] or objects
    if len(services) != 1:
        raise ManifestError(f"{path}: must hold exactly one {KIND}, holds {len(services)}")
    return services[0]
