"""Whether an object is as it was applied is told from the object alone."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.applied import APPLIED, holds, with_digest

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(_JSON)
def test_everything_holds_itself(value: Any) -> None:
    """A write whose answer is what was sent is not done again."""
    assert holds(value, value)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), _JSON, max_size=4), _JSON)
def test_what_others_add_is_no_difference(wanted: dict[str, Any], added: Any) -> None:
    """Defaults of the API server, and fields of other managers."""
    assert holds({"added by another": added} | wanted, wanted)


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"replicas": 2}, {"replicas": 3}),
        ({}, {"replicas": 3}),
        ({"env": [{"name": "A"}]}, {"env": []}),
        ({"env": [{"name": "A"}, {"name": "B"}]}, {"env": [{"name": "A"}]}),
        ({"env": "A"}, {"env": ["A"]}),
        ({"labels": {"a": "1"}}, {"labels": {"a": "2"}}),
    ],
)
def test_a_change_is_seen(live: Any, wanted: Any) -> None:
    """A value, a field that is gone, an item more."""
    assert not holds(live, wanted)


def test_a_field_that_is_dropped_is_seen_by_the_digest() -> None:
    """It is still in the object: only the digest tells that it was of the last manifest."""
    metadata = {"name": "a", "annotations": {"mine": "1"}}
    before = with_digest({"metadata": metadata, "spec": {"a": 1, "b": 2}})
    after = with_digest({"metadata": metadata, "spec": {"a": 1}})

    assert holds(before, before)
    assert not holds(before, after)
    assert before["metadata"]["annotations"]["mine"] == "1"
    assert APPLIED in after["metadata"]["annotations"]
    assert APPLIED not in metadata["annotations"]
