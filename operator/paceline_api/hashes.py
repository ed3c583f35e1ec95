"""The two hashes of a spec: of hot fields (no restart) and of cold ones (the pod template)."""

import hashlib
import json
from typing import Any, Final

from paceline_api.inference_service import Spec
from paceline_api.part import OnChange, changes

_LENGTH: Final = 16


def config_hash(spec: Spec) -> str:
    """Name the hot configuration; a pod that reports this hash has acknowledged it."""
    return _hash(_declared(spec, OnChange.HOT))


def template_hash(spec: Spec) -> str:
    """Name the pod template by the cold fields that differ from their defaults.

    A later version that adds a field with a default therefore keeps every hash.
    """
    return _hash(_declared(spec, OnChange.COLD))


def changed_fields(before: Spec, after: Spec, on_change: OnChange) -> tuple[str, ...]:
    """Name the fields of spec, in its order, in which a change of this kind was made."""
    old, new = _declared(before, on_change), _declared(after, on_change)
    return tuple(name for name in Spec.model_fields if old.get(name) != new.get(name))


def _declared(spec: Spec, on_change: OnChange) -> dict[str, Any]:
    """Write the fields of one kind that differ from their defaults."""
    wanted = _FIELDS[on_change]
    found = spec.model_dump(include=wanted, exclude_defaults=True, mode="json")
    # A part whose fields are of several kinds may have none of this one to show.
    return {name: value for name, value in found.items() if value or wanted[name] is True}


def _tree(on_change: OnChange) -> dict[str, Any]:
    """Nest the paths of the fields of one kind, as pydantic's `include` takes them."""
    tree: dict[str, Any] = {}
    for (*parents, name), said in changes(Spec):
        if said is on_change:
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[name] = True
    return tree


_FIELDS: Final = {on_change: _tree(on_change) for on_change in OnChange}


def _hash(fields: dict[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
