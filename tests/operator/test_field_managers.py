"""Whoever restored an orphan stops managing its content."""

from paceline_api.labels import Manifest
from paceline_operator.field_managers import with_content_owned


def _entry(manager: str, fields: Manifest, operation: str = "Update", **more: str) -> Manifest:
    return {
        "manager": manager,
        "operation": operation,
        "apiVersion": "apps/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    } | more


_STATUS = _entry("kube-controller-manager", {"f:status": {}}, subresource="status")


def test_content_moves_and_metadata_and_subresources_stay() -> None:
    """Labels that a backup put there are its own affair; a scale belongs to who scaled."""
    scale = _entry("kubectl", {"f:spec": {"f:replicas": {}}}, subresource="scale")
    fields = {"f:metadata": {"f:labels": {"f:velero": {}}}, "f:spec": {"f:old": {}}}
    ours = _entry("paceline-operator", {"f:spec": {"f:new": {}}}, "Apply")

    found = with_content_owned([_STATUS, scale, _entry("velero", fields), ours], "apps/v1")

    assert found == [
        _STATUS,
        scale,
        _entry("velero", {"f:metadata": fields["f:metadata"]}),
        _entry("paceline-operator", {"f:spec": {"f:new": {}, "f:old": {}}}, "Apply"),
    ]


def test_what_nobody_else_manages_is_left_as_it_is() -> None:
    """After `--cascade=orphan` there is nothing to write."""
    entries = [_STATUS, _entry("paceline-operator", {"f:spec": {}}, "Apply")]

    assert with_content_owned(entries, "apps/v1") is entries


def test_an_object_without_an_entry_of_ours_gets_one() -> None:
    """A restore drops the list, and begins another."""
    (entry,) = with_content_owned([_entry("velero", {"f:data": {"f:a": {}}})], "apps/v1")

    assert entry == _entry("paceline-operator", {"f:data": {"f:a": {}}}, "Apply")
