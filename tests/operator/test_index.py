"""What was told last is known, of each service its own, and nothing of what is gone."""

from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_api.labels import Manifest
from paceline_operator.index import Index


def _object(uid: str, version: int = 1, kind: str = "Service", **more: Any) -> Manifest:
    return {"kind": kind, "metadata": {"uid": uid, "resourceVersion": str(version), **more}}


def _versions(found: Iterable[Manifest]) -> dict[str, str]:
    return {one["metadata"]["uid"]: one["metadata"]["resourceVersion"] for one in found}


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop"]),
        st.sampled_from(["a", "b"]),  # the service
        st.sampled_from(["1", "2", "3"]),  # the uid
        st.sampled_from(["Service", "Pod"]),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(_EVENTS)
def test_it_knows_what_a_plain_table_knows(events: list[tuple[str, str, str, str]]) -> None:
    """However children and pods come, move to another service and go."""
    index, table = Index(), dict[str, tuple[str, Manifest]]()
    for version, (what, key, uid, kind) in enumerate(events):
        live = _object(uid, version, kind)
        if what == "put":
            index.put_owned(key, live)
            table[uid] = key, live
        else:
            assert index.drop_owned(uid) == table.pop(uid, ("", {}))[0]

    for key in ("a", "b"):
        mine = [live for whose, live in table.values() if whose == key]
        pods = [live for live in mine if live["kind"] == "Pod"]
        assert _versions(index.pods(key)) == _versions(pods)
        assert _versions(index.children(key)) == _versions(
            live for live in mine if live["kind"] != "Pod"
        )
    assert _versions(one for _, one in index.owned()) == _versions(
        live for _, live in table.values()
    )


def test_a_list_that_lags_behind_takes_nothing_back() -> None:
    """An API server that was away may begin with what was."""
    index = Index()
    index.put_service("a", _object("1", 10))
    index.put_owned("a", _object("2", 10))

    index.put_service("a", _object("1", 9))
    index.put_owned("a", _object("2", 9))

    service = index.service("a")
    assert service is not None
    assert service["metadata"]["resourceVersion"] == "10"
    assert _versions(index.children("a")) == {"2": "10"}


def test_a_late_end_does_not_take_the_service_made_since() -> None:
    """Deleted and made again in one breath."""
    index = Index()
    index.put_service("a", _object("1", 1))
    index.put_service("a", _object("2", 3))

    index.drop_service("a", "1")
    is_known = index.service("a") is not None
    index.drop_service("a", "2")

    assert is_known
    assert [*index.keys()] == []


def test_of_field_managers_only_our_creation_is_remembered() -> None:
    """They can outweigh the rest; that a POST of ours manages something must be known."""
    ours = {"manager": "paceline-operator", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    status = ours | {"subresource": "status"}
    theirs = {"manager": "helm", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    index = Index()

    index.put_owned("a", _object("1", managedFields=[theirs, status]))
    index.put_owned("a", _object("2", managedFields=[theirs, ours]))

    without, created = sorted(index.children("a"), key=lambda one: one["metadata"]["uid"])
    assert "managedFields" not in without["metadata"]
    (entry,) = created["metadata"]["managedFields"]
    assert entry == {"manager": "paceline-operator", "operation": "Update"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)  # fmt: skip


@settings(deadline=None)
@given(_JSON)
def test_an_object_is_given_as_it_was_told(spec: Any) -> None:
    """Whatever JSON it holds; who changes it changes a copy."""
    index = Index()
    live = _object("1", namespace="ns", name="one") | {"spec": spec}

    index.put_owned("a", live)
    index.put_service("a", live)
    (found,) = index.children("a")
    service = index.service("a")
    assert service is not None
    assert found == service == live
    found["spec"] = service["spec"] = "changed"

    assert [*index.children("a")] == [index.service("a")] == [live]
    assert [*index.owned()] == [("Service", {"metadata": live["metadata"]})]
