"""Prompt lookup drafts what followed the newest tokens before."""

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.drafting.ngram import NgramIndex

tokens = st.lists(st.integers(0, 3), max_size=60)


def naive(token_ids: list[int], count: int) -> tuple[int, ...]:
    """The same by looking through all of it."""
    for start in range(len(token_ids) - 1, 2, -1):
        if token_ids[start - 3 : start] == token_ids[-3:]:
            found = list(token_ids)
            for index in range(count):
                found.append(found[start + index])
            return tuple(found[len(token_ids) :])
    return ()


def test_what_followed_last_time_is_drafted() -> None:
    """The newest occurrence counts."""
    assert NgramIndex().propose([1, 2, 3, 7, 8, 1, 2, 3, 9, 9, 9, 1, 2, 3], 2) == (9, 9)


def test_a_pattern_is_followed_past_the_end() -> None:
    """Tables and lists repeat with a short period."""
    assert NgramIndex().propose([5, 1, 2, 1, 2, 1, 2], 5) == (1, 2, 1, 2, 1)


def test_what_is_new_is_not_drafted() -> None:
    """No draft costs nothing."""
    assert NgramIndex().propose([1, 2, 3, 4, 5, 6], 4) == ()
    assert NgramIndex().propose([1, 1], 4) == ()
    assert NgramIndex().propose([], 4) == ()


@given(tokens, st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8))
def test_it_grows_with_the_request(start: list[int], more: list[int], count: int) -> None:
    """Asked at some steps only, it answers as if it looked through everything each time."""
    index, known = NgramIndex(), list(start)

    for place, token in enumerate(more):
        known.append(token)
        if place % 3 != 1:
            assert index.propose(known, count) == naive(known, count)
