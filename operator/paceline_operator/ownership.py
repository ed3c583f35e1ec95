"""Decide whose an object is that bears the name of a child: ours, an orphan of ours, or another's.

An orphan is what `kubectl delete --cascade=orphan` or a restore from a backup leaves: it carries
our labels, selects the pods of this service, and nobody owns it.
"""

from typing import Any

from paceline_api.inference_service import GROUP, KIND, InferenceService
from paceline_api.labels import CANARY, MANAGED_BY, MANAGER, SERVICE_LABEL, Manifest, selector
from paceline_operator.errors import LeavingError, NameTakenError


def is_orphan(service: InferenceService, live: Manifest) -> bool:
    """Tell an orphan, which may be adopted, from a child of this service.

    Raises NameTakenError where the object is another's, and LeavingError where it was a child of
    an earlier service of this name, which the collector is about to delete.
    """
    kind, metadata = live["kind"], live["metadata"]
    owners = metadata.get("ownerReferences") or ()
    if any(owner["uid"] == service.metadata.uid for owner in owners):
        return False
    if not _is_labelled(service, metadata) or not _selects(service, live.get("spec") or {}):
        raise NameTakenError(kind, metadata["name"])
    # Whoever deleted the earlier service wanted its children to go: the collector has the last
    # word on each of them, and an adoption that races with it would keep some and lose others.
    if metadata.get("deletionTimestamp") or any(_is_earlier(service, owner) for owner in owners):
        raise LeavingError(kind, metadata["name"])
    if owners:
        raise NameTakenError(kind, metadata["name"])
    return True


def _is_labelled(service: InferenceService, metadata: Manifest) -> bool:
    labels = metadata.get("labels") or {}
    return bool(
        labels.get(MANAGED_BY) == MANAGER and labels.get(SERVICE_LABEL) == service.metadata.name
    )


def _selects(service: InferenceService, spec: Manifest) -> bool:
    """Compare the immutable fields; server-side apply updates all others."""
    found: Any = spec.get("selector") or spec.get("podSelector")
    if found is None:
        return True
    labels = {key: value for key, value in found.get("matchLabels", found).items() if key != CANARY}
    return labels == selector(service.metadata.name)


def _is_earlier(service: InferenceService, owner: Manifest) -> bool:
    """Whether it names a service that had this name before: only one can have it at a time."""
    is_ours = owner["kind"] == KIND and owner["apiVersion"].partition("/")[0] == GROUP
    return bool(is_ours and owner["name"] == service.metadata.name)
