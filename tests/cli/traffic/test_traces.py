"""Published traces are told apart by their headers, and a bad line is named."""

from pathlib import Path

import pytest

from paceline_cli.traffic.traces import TracedRequest, TraceError, parse_trace, read_trace

AZURE = [
    "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "2023-11-16 18:15:46.6805900,374,44\n",
    "2023-11-16 18:15:50.1805900,396,109\n",
]
BURST = [
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
    "5,ChatGPT,472,18,490,Conversation log\n",
    "8.5,GPT-4,1087,230,1317,API log\n",
]
MOONCAKE = [
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}\n',
    '{"timestamp": 30982, "input_length": 6472, "output_length": 26, "hash_ids": [46]}\n',
]


@pytest.mark.parametrize(
    ("lines", "name", "lengths"),
    [
        (AZURE, "Azure", [(374, 44), (396, 109)]),
        (BURST, "BurstGPT", [(472, 18), (1087, 230)]),
        (MOONCAKE, "Mooncake", [(6955, 52), (6472, 26)]),
    ],
    ids=["azure", "burstgpt", "mooncake"],
)
def test_each_format_is_known_by_its_header(
    lines: list[str], name: str, lengths: list[tuple[int, int]]
) -> None:
    """Dates, seconds and milliseconds all become seconds after the first request."""
    trace = parse_trace("t", lines)

    assert trace.format == name
    assert [(r.prompt, r.output) for r in trace.requests] == lengths
    assert [r.at_s for r in trace.requests] == [0.0, pytest.approx(3.5)]


def test_requests_without_an_answer_are_counted_and_left_out() -> None:
    """BurstGPT records failures with no response token."""
    trace = parse_trace("t", [*BURST, "9,ChatGPT,10,0,10,API log\n"])

    assert (len(trace.requests), trace.num_unanswered) == (2, 1)


def test_requests_are_put_in_order_of_arrival() -> None:
    """Some files are sorted by another column."""
    trace = parse_trace("t", [BURST[0], BURST[2], BURST[1]])

    assert trace.requests[0] == TracedRequest(0.0, 472, 18)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([*AZURE, "2023-11-16 18:15:51,many,3\n"], "t: line 4, column ContextTokens: .*'many'"),
        ([*AZURE, "yesterday,3,3\n"], "t: line 4, column TIMESTAMP: .*'yesterday'"),
        ([*AZURE, "\n", "2023-11-16 18:15:51,3\n"], "t: line 5, column GeneratedTokens: .*None"),
        ([*BURST, "9,GPT-4,-1,2,1,API log\n"], "t: line 4, column Request tokens: .*'-1'"),
        ([*BURST, "inf,GPT-4,1,2,3,API log\n"], "t: line 4, column Timestamp: .*'inf'"),
        ([*MOONCAKE, "{broken\n"], "t: line 3: not JSON"),
        ([*MOONCAKE, "[1]\n"], "t: line 3: must be an object"),
        (['{"timestamp": 1, "input_length": 2}\n'], "t: line 1, column output_length: .*None"),
        (["TIMESTAMP,ContextTokens\n"], "line 1: looks like Azure, .*no column GeneratedTokens"),
        (["a,b\n", "1,2\n"], "line 1: no header of a known trace.*BurstGPT.*Mooncake"),
        ([], "line 1: no header of a known trace"),
        (AZURE[:2], "needs two answered requests at different times, holds 1 answered"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_column(lines: list[str], words: str) -> None:
    """A trace of a million lines is not searched by eye."""
    with pytest.raises(TraceError, match=words):
        parse_trace("t", lines)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """As for a manifest."""
    with pytest.raises(TraceError, match=r"nowhere\.csv: no such file"):
        read_trace(tmp_path / "nowhere.csv")
