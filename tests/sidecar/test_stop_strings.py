"""Stop strings are found across the borders of tokens and never shown."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from paceline_sidecar.text.stop import StopMatcher

LETTERS = st.text(alphabet="abc", max_size=40)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), max_size=4).map(tuple)


def naive(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Search the whole text: the first end of any stop string, of equal ends the longest."""
    for end in range(len(text) + 1):
        endings = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if endings:
            return text[: end - max(endings)], True
    return text, False


def cut_at(text: str, borders: list[int]) -> list[str]:
    places = sorted({0, len(text), *(border % (len(text) + 1) for border in borders)})
    return [text[a:b] for a, b in pairwise(places)]


@given(LETTERS, STOPS, st.lists(st.integers(min_value=0, max_value=100), max_size=40))
def test_the_result_is_that_of_a_search_in_the_whole_text(
    text: str, stops: tuple[str, ...], borders: list[int]
) -> None:
    """However the text is cut into tokens."""
    matcher, shown, stopped = StopMatcher(stops), "", False
    for piece in cut_at(text, borders):
        part, stopped = matcher.push(piece)
        shown += part
        if stopped:
            break
    else:
        shown += matcher.flush()

    assert (shown, stopped) == naive(text, stops)


@given(LETTERS, STOPS)
def test_nothing_is_held_back_that_cannot_become_a_stop_string(
    text: str, stops: tuple[str, ...]
) -> None:
    """A stream shows every character as soon as it may."""
    matcher = StopMatcher(stops)
    shown, stopped = matcher.push(text)

    held = "" if stopped else text[len(shown) :]
    assert not held or any(stop.startswith(held) for stop in stops)
