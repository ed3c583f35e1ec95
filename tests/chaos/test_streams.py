from dataclasses import replace

import pytest

from chaos.streams import Answer, Kill, Outcome, Stream, judge

EXPECTED = Answer(" Paris, the capital.", "stop")
WHOLE = Stream(
    prompt=0,
    began_at=10.0,
    ended_at=14.0,
    text=EXPECTED.text,
    finish_reason="stop",
    first_byte_at=10.5,
    port=4711,
)
CUT = replace(WHOLE, text=" Paris,", finish_reason="", error="the connection was closed")
KILL = Kill(at=13.9, ports=frozenset({4711}))


def test_the_right_text_with_the_right_end_is_whole() -> None:
    assert judge(WHOLE, EXPECTED, []) == Outcome.WHOLE
    assert judge(WHOLE, EXPECTED, [KILL]) == Outcome.WHOLE


@pytest.mark.parametrize(
    "stream",
    [
        replace(WHOLE, text=" Berlin, the capital."),
        replace(WHOLE, text=EXPECTED.text + " One, two"),
        replace(CUT, text=" Pa two, three"),
    ],
    ids=["another's", "another's after ours", "cut"],
)
def test_text_that_is_no_beginning_of_the_right_one_is_mixed(stream: Stream) -> None:
    """Whatever became of the stream, and whoever was killed."""
    assert judge(stream, EXPECTED, [KILL]) == Outcome.MIXED


def test_a_stream_that_its_pods_kill_cut_is_counted_apart() -> None:
    assert judge(CUT, EXPECTED, [Kill(5.0, frozenset()), KILL]) == Outcome.CUT


@pytest.mark.parametrize(
    ("stream", "kill"),
    [
        (CUT, replace(KILL, ports=frozenset({4712}))),
        (replace(CUT, first_byte_at=None, port=None), KILL),
        (replace(CUT, first_byte_at=13.95), KILL),
        (CUT, replace(KILL, at=14.1)),
        (replace(CUT, ended_at=50.0), KILL),
        (replace(WHOLE, finish_reason="length"), KILL),
    ],
    ids=[
        "of the other pod",
        "before the first byte",
        "begun after the kill",
        "over before the kill",
        "told of it too late",
        "another reason of its end",
    ],
)
def test_everything_else_is_failed(stream: Stream, kill: Kill) -> None:
    """Nothing is excused that could have been spared the client."""
    assert judge(stream, EXPECTED, [kill]) == Outcome.FAILED
