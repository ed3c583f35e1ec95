"""Outputs are compared by their words: what may differ is named, a changed word never passes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from docs_check.compared import RULES, differences, missing

UP = """\
quickstart: in the browser at http://127.0.0.1:37491/
quickstart: loading weights 30%
quickstart: ready at http://127.0.0.1:8000/v1
"""


def test_figures_and_progress_may_differ() -> None:
    printed = """\
quickstart: in the browser at http://127.0.0.1:4011/
quickstart: reading 0%
quickstart: loading weights 10%
quickstart: loading weights 20%
quickstart: ready at http://127.0.0.1:8000/v1
"""

    assert differences(UP, printed) == []


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        ("paceline-6f5c9d8b7-x2x4z 1/1 12s", "paceline-7bd4c5f6d9-k8w2p 1/1 2m1s"),
        ("quickstart-6f5c9d8b74-x2x4z 1/1 12s", "quickstart-5d84-5tlhr 1/1 12s"),
        ('"id": "chatcmpl-' + 32 * "a" + '"', '"id": "chatcmpl-' + 32 * "7" + '"'),
        ("│ TTFT │  1,250 ms │", "│ TTFT │ 9 ms │"),
        ("┏━━━┓\na", "┏━━━━━━━┓\na"),
        ("a   b  4.25", "a b 17"),
    ],
    ids=["pods", "a short hash", "ids", "cells", "frames", "widths"],
)  # fmt: skip
def test_what_each_run_has_of_its_own_is_equal(said: str, printed: str) -> None:
    assert differences(said, printed) == []


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        (UP, UP.replace("ready", "steady")),
        (UP, UP + "quickstart: engine ended with code 1\n"),
        (UP, UP.replace("quickstart: ready at http://127.0.0.1:8000/v1\n", "")),
        ("latency 12 ms", "latency - ms"),
        ("latency 12 ms", "latency ms"),
        ("1/1  Running", "1/1  Pending"),
        ("quickstart: loading weights 30%", "quickstart: losing weights 30%"),
        ("a", ""),
        ("", "a"),
        ("a b", "ab"),
        ("a\nb", "b\na"),
        ('"Paris"', '"paris"'),
    ],
)
def test_a_changed_word_is_a_difference(said: str, printed: str) -> None:
    assert differences(said, printed)


WORDS = st.from_regex(r"[a-z]{1,7}", fullmatch=True)


@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
@example(["the", "pod"], None)
def test_any_other_word_at_any_place_is_a_difference(
    words: list[str], data: st.DataObject | None
) -> None:
    """Whatever the rules take out, they take out no word."""
    at = data.draw(st.integers(0, len(words) - 1)) if data else 0
    other = data.draw(WORDS.filter(lambda each: each != words[at])) if data else "a"
    changed = [*words[:at], other, *words[at + 1 :]]

    assert differences(" ".join(words), " ".join(changed))


def test_no_rule_takes_a_word() -> None:
    text = "the pod is ready, and a cluster-wide well-known service answers"

    takers = [rule.name for rule in RULES if rule.pattern.sub(" ", text).split() != text.split()]
    assert takers == []


def test_texts_must_be_shown_in_their_order() -> None:
    output = "offered   10 requests\nthroughput 3\nLatency (ms)"

    assert missing(("offered 7 requests", "Latency (ms)"), output) == []
    assert missing(("Latency (ms)", "offered 10 requests"), output) == ["offered 10 requests"]
    assert missing(("goodput",), output) == ["goodput"]
