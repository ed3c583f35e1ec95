"""Objects are kept as they are, and what they have in common once."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.compact import compact

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(_JSON)
def test_nothing_is_changed(value: Any) -> None:
    """Whatever an API server sends."""
    assert compact(value) == value


def test_the_words_of_two_objects_are_the_same() -> None:
    """As the decoder makes them they are not."""
    one, other = (compact(json.loads('{"protocol": "TCP"}')) for _ in range(2))

    assert next(iter(one)) is next(iter(other))
    assert one["protocol"] is other["protocol"]


def test_long_texts_are_left_alone() -> None:
    """Each is an object's own."""
    text = "x" * 65

    assert compact([text])[0] is text
