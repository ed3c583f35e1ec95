"""Whose an object is that bears the name of a child."""

from typing import Any

import pytest

from paceline_api.labels import CANARY, Manifest, labels, selector
from paceline_operator.errors import LeavingError, NameTakenError
from paceline_operator.ownership import is_orphan
from paceline_testing.services import UID, a_service

_OURS = {"apiVersion": "serving.paceline.dev/v1alpha1", "kind": "InferenceService", "name": "quick"}
_OTHERS = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "quick"}


def _live(kind: str = "ConfigMap", spec: Manifest | None = None, **metadata: Any) -> Manifest:
    named = {"name": "quick", "namespace": "default", "labels": labels("quick")} | metadata
    return {"kind": kind, "metadata": named} | ({"spec": spec} if spec else {})


@pytest.mark.parametrize(
    "live",
    [
        _live(),
        _live(ownerReferences=[]),
        _live("Service", {"selector": selector("quick")}),
        _live("Deployment", {"selector": {"matchLabels": selector("quick")}}),
        _live("Deployment", {"selector": {"matchLabels": selector("quick") | {CANARY: "true"}}}),
        _live("NetworkPolicy", {"podSelector": {"matchLabels": selector("quick")}}),
    ],
    ids=["no list of owners", "an empty one", "Service", "Deployment", "canary", "NetworkPolicy"],
)
def test_what_carries_our_labels_and_has_no_owner_is_an_orphan(live: Manifest) -> None:
    """Its content may differ: apply brings it to the spec, as it does after any drift."""
    assert is_orphan(a_service(), live)


def test_a_child_is_known_by_its_owner_alone() -> None:
    """Somebody may have stripped its labels: apply brings them back."""
    assert not is_orphan(a_service(), _live(labels={}, ownerReferences=[_OURS | {"uid": UID}]))


@pytest.mark.parametrize(
    "live",
    [
        _live(labels={}),
        _live(labels=labels("another")),
        _live(labels=labels("quick") | {"app.kubernetes.io/managed-by": "Helm"}),
        _live(ownerReferences=[_OTHERS | {"uid": "1"}]),
        _live(ownerReferences=[_OURS | {"name": "another", "uid": "1"}]),
        _live("Service", {"selector": {"app": "theirs"}}),
        _live("Deployment", {"selector": {"matchLabels": selector("quick") | {"track": "b"}}}),
    ],
    ids=[
        "no labels",
        "labels of another service",
        "managed by Helm",
        "owned by a Deployment",
        "owned by another service",
        "a Service of other pods",
        "a Deployment of other pods",
    ],
)
def test_what_is_anothers_is_never_taken(live: Manifest) -> None:
    """Labels are no proof where an owner or the selected pods say otherwise."""
    with pytest.raises(NameTakenError):
        is_orphan(a_service(), live)


@pytest.mark.parametrize(
    "live",
    [
        _live(ownerReferences=[_OURS | {"uid": "an earlier one"}]),
        _live(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
    ids=["the collector has yet to come", "the collector was there"],
)
def test_what_the_collector_is_about_to_delete_is_waited_for(live: Manifest) -> None:
    """Whoever deleted the earlier service of this name wanted its children to go."""
    with pytest.raises(LeavingError):
        is_orphan(a_service(), live)
