"""`bench run` on any endpoint: its options, its files, and what it says of itself."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from paceline_cli.__main__ import main
from paceline_cli.bench.document import read_run
from paceline_cli.bench.options import duration
from paceline_cli.bench.traffic_choice import TrafficChoice, chosen_traffic
from paceline_cli.traffic.client_health import ClientHealth, judge
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.record import ClientRecord
from paceline_cli.traffic.traces import read_trace


class Server(ThreadingHTTPServer):
    """An OpenAI endpoint that says `a` as often as it is asked to, at once."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.has_usage = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    """One connection of it."""

    server: Server

    def do_GET(self) -> None:
        self._answer(json.dumps({"data": [{"id": "small"}]}), "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        self.server.keys.add(self.headers["authorization"])
        is_chat = "messages" in body
        count = body["max_completion_tokens" if is_chat else "max_tokens"]
        piece = {"delta": {"content": "a"}} if is_chat else {"text": "a"}
        events: list[dict[str, Any]] = [{"choices": [piece]} for _ in range(count)]
        if self.server.has_usage:
            usage = {"prompt_tokens": 9, "completion_tokens": count}
            events.append({"choices": [], "usage": usage})
        lines = [f"data: {json.dumps(event)}\n\n" for event in events]
        self._answer("".join([*lines, "data: [DONE]\n\n"]), "text/event-stream")

    def _answer(self, text: str, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """One that runs in a thread."""
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        try:
            yield serving
        finally:
            serving.shutdown()
            thread.join()


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("bench", "run", *arguments))


SMALL = ("--prompt-tokens", "20", "--output-tokens", "5", "--rate", "100", "--requests", "40")


def test_a_run_writes_page_figures_and_a_trace(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goodput first; the trace can be offered again; the key comes from the environment."""
    monkeypatch.setenv("SOME_KEY", "k")
    out = ("--out", str(tmp_path))
    result = bench("--url", server.url, "--api-key-env", "SOME_KEY", *SMALL, "--ttft", "60s", *out)

    assert result.exit_code == 0, result.output
    assert result.output.index("attainment") < result.output.index("throughput")
    read = read_run(tmp_path / "run.json")
    assert (read.model, read.measures.offered, read.measures.unanswered) == ("small", 40, 0)
    assert read.measures.attainment.value == 1.0
    assert read.measures.goodput_tokens_per_s.value == pytest.approx(500.0)
    assert "4 requests" in read.warmup
    assert server.keys == {"Bearer k"}
    assert len(read_trace(tmp_path / "requests.jsonl").requests) == 44
    page = (tmp_path / "run.html").read_text()
    assert page.count("<svg") == 2
    assert 'src="' not in page.replace("data:", "")

    again = bench("--url", server.url, "--trace", str(tmp_path / "requests.jsonl"),
                  "--requests", "10", "--rate", "100", *out)  # fmt: skip
    assert again.exit_code == 0, again.output
    assert "of its 44 requests; lengths of the trace" in again.output


def test_a_closed_loop_of_chats_in_turns(server: Server, tmp_path: Path) -> None:
    """Every turn says all that was said before."""
    result = bench(
        "--url", server.url, "--endpoint", "chat", "--concurrency", "2", "--turns", "2",
        "--think", "0", "--requests", "10", "--keep-eos", "--output-tokens", "5",
        "--prompt-tokens", "20", "--out", str(tmp_path),
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    lengths = sorted(len(body["messages"]) for body in server.bodies)
    assert set(lengths) == {1, 3}
    assert not any("ignore_eos" in body for body in server.bodies)
    longest = next(body["messages"] for body in server.bodies if len(body["messages"]) == 3)
    assert (longest[1]["role"], longest[1]["content"]) == ("assistant", "aaaaa")


def test_without_usage_and_tokenizer_pieces_are_counted_and_it_is_said(
    server: Server, tmp_path: Path
) -> None:
    """Rather than tokens that nobody counted."""
    server.has_usage = False

    result = bench("--url", server.url, *SMALL, "--cancel", "0.5", "--out", str(tmp_path))

    assert "told no usage" in result.output
    assert "left as planned" in result.output
    assert read_run(tmp_path / "run.json").measures.output_tokens.value == 5.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say what to measure"),
        (("--url", "http://127.0.0.1:9", "--rate", "1"), "say --model"),
        (("--url", "http://127.0.0.1:9", "--model", "m"), "say how much"),
        (("--url", "u", "--cv", "2", "--uniform"), "contradict"),
        (("--url", "u", "--burst", "5"), "no burst"),
        (("--url", "u", "--burst", "5/x"), "a duration is"),
        (("--url", "u", "--prompt-tokens", "5:1:9-20"), "for --prompt-tokens: '5:1:9-20': the"),
        (("--url", "u", "--timeout", "0s"), "0s must be above 0"),
        (("--url", "u", "--warmup", "soon"), "a duration is"),
        (("--url", "u", "--ttft", "fast"), "a duration is"),
        (("--url", "u", "--trace", "none.csv", "--model", "m"), "none.csv"),
        (("--url", "u", "--api-key-env", "NO_SUCH_KEY", "--model", "m"), "NO_SUCH_KEY"),
    ],
)
def test_what_cannot_be_is_refused_with_exit_status_2(
    arguments: tuple[str, ...], words: str
) -> None:
    """Before a request is sent, in a sentence."""
    result = bench(*arguments)

    assert result.exit_code == 2, result.output
    assert words in result.output.replace("\n", " ")


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{second:02}.0,20,{0 if second in {7, 9} else 5}\n" for second in range(60)
)


@pytest.mark.parametrize(
    ("requests", "part"),
    [
        (20, "the first {count} of its 58 requests ("),
        (58, "all of its 58 requests ("),
        (80, "all of its 58 requests, some again: {count} ("),
    ],
    ids=["cut", "whole", "longer"],
)
def test_a_run_says_how_much_of_a_trace_it_measures(
    tmp_path: Path, requests: int, part: str
) -> None:
    """As many as are planned; what had no answer where it was recorded is left out."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)

    chosen = chosen_traffic(TrafficChoice(trace=trace, requests=requests, warmup_s=0.0))

    count = len(chosen.requests(help_topics(), 1))
    assert abs(count - requests) <= 2
    assert part.format(count=count) in chosen.words
    assert "(2 more are left out: they had no answer)" in chosen.words


def test_lengths_from_a_trace_leave_out_the_same(tmp_path: Path) -> None:
    """A request without an answer has no length of one."""
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE)

    words = chosen_traffic(TrafficChoice(rate_rps=4.0, lengths=trace)).words

    assert "lengths drawn from trace.csv (2 more are left out: they had no answer)" in words


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("2s", 2.0), ("0.25", 0.25), ("0", 0.0), ("1m", 60.0)]
)
def test_a_time_is_a_duration_or_a_number_of_seconds(text: str, seconds: float) -> None:
    """As targets and manifests have it, and as scripts have written it."""
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1d", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    """Before anything starts."""
    with pytest.raises(click.BadParameter):
        duration(text)


def a_record(late_s: float) -> ClientRecord:
    times = tuple(1.0 + i / 10 for i in range(5))
    return ClientRecord(0.5, 0.5 + late_s, times, 1.4, 5, 5, "ok")


@pytest.mark.parametrize(
    ("lag_ms", "late_s", "is_saturated"),
    [(2.0, 0.001, False), (40.0, 0.001, True), (2.0, 0.05, True)],
    ids=["fine", "lagging loop", "late sends"],
)
def test_a_client_that_lags_says_so(lag_ms: float, late_s: float, is_saturated: bool) -> None:
    """A quarter of a usual gap, here 25 ms, is too much."""
    found: ClientHealth = judge([(1.0, lag_ms)] * 10, [a_record(late_s)], 0.0)

    assert found.is_saturated == is_saturated
    assert found.sentence.startswith("The client was saturated" if is_saturated else "The client")
