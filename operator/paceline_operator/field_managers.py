"""Become the only manager of a child's content.

A tool that restored an orphan manages every field that it wrote, and so does the POST that created
a child, which is no server-side apply. That removes a field only when nobody else manages it: an
environment variable that a later spec drops would stay for ever.
"""

from copy import deepcopy

from paceline_api.labels import MANAGER, Manifest

_METADATA = "f:metadata"


def with_content_owned(entries: list[Manifest], api_version: str) -> list[Manifest]:
    """Move all but metadata from other managers to ours; subresources keep theirs."""
    kept: list[Manifest] = []
    ours: Manifest = {
        "manager": MANAGER,
        "operation": "Apply",
        "apiVersion": api_version,
        "fieldsType": "FieldsV1",
        "fieldsV1": {},
    }
    moved: Manifest = {}
    for entry in entries:
        if entry.get("subresource") or entry["apiVersion"] != api_version:
            kept.append(entry)
        elif (entry["manager"], entry["operation"]) == (MANAGER, "Apply"):
            ours = deepcopy(entry)
        elif is_of_creation(entry):
            moved = _union(moved, entry.get("fieldsV1") or {})
        else:
            fields = entry.get("fieldsV1") or {}
            moved = _union(moved, {k: v for k, v in fields.items() if k != _METADATA})
            if _METADATA in fields:
                kept.append(entry | {"fieldsV1": {_METADATA: fields[_METADATA]}})
    if not moved:
        return entries
    return [*kept, ours | {"fieldsV1": _union(ours["fieldsV1"], moved)}]


def is_of_creation(entry: Manifest) -> bool:
    """Whether the entry is what our POST left."""
    is_content = not entry.get("subresource")
    return is_content and (entry["manager"], entry["operation"]) == (MANAGER, "Update")


def was_created_by_us(live: Manifest) -> bool:
    """Whether our POST still manages fields, as the watch or an answer shows it."""
    return any(map(is_of_creation, live["metadata"].get("managedFields") or ()))


def _union(one: Manifest, other: Manifest) -> Manifest:
    """Unite two sets of fields, which are trees of names."""
    return one | {name: _union(one.get(name, {}), below) for name, below in other.items()}
