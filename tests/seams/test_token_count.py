"""The script of `token-limits.yaml` in a real Envoy, in front of answers that come in pieces."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Semaphore, Thread
from typing import Final

import httpx
import pytest

from paceline_testing.envoy import Envoy, address, running_envoy, typed
from paceline_testing.examples import documents_of
from paceline_testing.waiting import wait_until

_JSON, _EVENTS = "application/json", "text/event-stream; charset=utf-8"
_ASKED: Final = b'{"prompt":"Once upon a time"}'
_TOLD: Final = b'{"text":"a \\"total_tokens\\":7, b","usage":{"total_tokens":12345,"details":{}}}'


@dataclass(slots=True)
class Answer:
    """What the pod says next; after each piece it waits for leave."""

    pieces: Sequence[bytes] = ()
    kind: str = _JSON
    status: int = 200
    leave: Semaphore = field(default_factory=lambda: Semaphore(0))


@dataclass(frozen=True, slots=True)
class CountingEnvoy:
    """An Envoy with the example's script before one pod."""

    client: httpx.Client
    answer: Answer
    log: Path

    def count(self, pieces: Sequence[bytes], kind: str, *, method: str = "POST") -> str:
        """Ask, take each piece before the next one is sent, and return what was counted."""
        self.answer.pieces, self.answer.kind = pieces, kind
        counted = len(self._lines())
        content = _ASKED if method == "POST" else None
        with self.client.stream(method, "/", content=content) as answer:
            raw, received, sent = answer.iter_raw(), b"", 0
            for piece in pieces:
                sent += len(piece)
                while len(received) < sent:
                    received += next(raw)
                self.answer.leave.release()
            received += b"".join(raw)
        assert received == b"".join(pieces)
        wait_until(lambda: len(self._lines()) > counted)
        return self._lines()[-1]

    def count_left(self, pieces: Sequence[bytes], kind: str) -> str:
        """Ask, leave once all has come but the end, and return what was counted."""
        self.answer.pieces, self.answer.kind = [*pieces, b"data: never read\n\n"], kind
        counted, received = len(self._lines()), b""
        with self.client.stream("POST", "/", content=_ASKED) as answer:
            raw = answer.iter_raw()
            for at in range(len(pieces)):
                while len(received) < sum(map(len, pieces[: at + 1])):
                    received += next(raw)
                if at + 1 < len(pieces):
                    self.answer.leave.release()
        wait_until(lambda: len(self._lines()) > counted)
        self.answer.leave.release(2)
        return self._lines()[-1]

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingEnvoy]:
    log, answer = tmp_path_factory.mktemp("counter") / "counted", Answer()
    with (
        _pod(answer) as pod_port,
        _envoy(pod_port, log) as proxy,
        httpx.Client(base_url=proxy.url, timeout=60) as client,
    ):
        yield CountingEnvoy(client, answer, log)


def test_an_answer_counts_its_usage_wherever_it_is_cut(counter: CountingEnvoy) -> None:
    """A number may be cut in two, and text that looks like a usage is none."""
    for at in range(1, len(_TOLD)):
        assert counter.count([_TOLD[:at], _TOLD[at:]], _JSON) == "12345", _TOLD[:at]


def test_a_stream_counts_the_usage_at_its_end(counter: CountingEnvoy) -> None:
    """Each piece has passed before the pod sends the next one."""
    pieces = [b'data: {"text":"a"}\n\n', b"data: " + _TOLD + b"\n\n", b"data: [DONE]\n\n"]

    assert counter.count(pieces, _EVENTS) == "12345"


def test_a_stream_without_a_usage_counts_its_events_and_its_request(counter: CountingEnvoy) -> None:
    """An event that is cut between its two line ends is one."""
    pieces = [b'data: {"text":"a"}\n', b'\ndata: {"text":"b"}\n\ndata: ', b"[DONE]\n\n"]

    assert counter.count(pieces, _EVENTS) == str(len(_ASKED) // 4 + 3)


def test_what_a_stream_repeats_of_its_request_is_no_usage(counter: CountingEnvoy) -> None:
    """A tool's schema comes back as it was sent, at the beginning; the usage comes at the end."""
    repeated = b'data: {"tools":[{"parameters":{"total_tokens":1}}]}\n\n'
    events = [b"data: a\n\n"] * 5

    assert counter.count([repeated, *events], _EVENTS) == "1"
    assert counter.count([repeated, *events, b"data: " + _TOLD + b"\n\n"], _EVENTS) == "12345"
    assert counter.count_left([repeated, *events], _EVENTS) == str(len(_ASKED) // 4 + 6)


def test_a_message_counts_its_prompt_its_answer_and_what_was_cached(counter: CountingEnvoy) -> None:
    """Its stream begins with a usage that knows nothing of the answer."""

    def event(written: int) -> bytes:
        usage = {"input_tokens": 5, "output_tokens": written, "cache_read_input_tokens": 30}
        return b"data: " + json.dumps({"usage": usage}, separators=(",", ":")).encode() + b"\n\n"

    assert counter.count([event(0)], _EVENTS) == str(len(_ASKED) // 4 + 1)
    assert counter.count([event(0), event(7)], _EVENTS) == "42"


def test_what_generates_nothing_costs_nothing(counter: CountingEnvoy) -> None:
    """A file of a batch's answers is full of usages; an error may quote one."""
    assert counter.count([_TOLD], _JSON, method="GET") == "-"
    counter.answer.status = 429
    assert counter.count([_TOLD], _JSON) == "-"
    counter.answer.status = 200


@contextmanager
def _pod(answer: Answer) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # a piece waits for nothing

        def do_GET(self) -> None:
            self.send_response(answer.status)
            self.send_header("content-type", answer.kind)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            with suppress(ConnectionError):  # of a client that leaves
                for piece in answer.pieces:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    answer.leave.acquire(timeout=60)
                self.wfile.write(b"0\r\n\r\n")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _envoy(pod_port: int, log: Path) -> Iterator[Envoy]:
    policy, counter = documents_of("gateway/token-limits.yaml")
    (script,) = counter["spec"]["lua"]
    (rule,) = policy["spec"]["rateLimit"]["global"]["rules"]
    place = rule["cost"]["response"]["metadata"]
    cost = f"%DYNAMIC_METADATA({place['namespace']}:{place['key']})%\n"
    file = {"path": str(log), "log_format": {"text_format_source": {"inline_string": cost}}}
    code = {"default_source_code": {"inline_string": script["inline"]}}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "pods"}}
    manager = {
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            typed("filters.http.lua", "filters.http.lua.v3", code, "Lua"),
            typed("filters.http.router", "filters.http.router.v3", {}, "Router"),
        ],
        "access_log": [
            typed("access_loggers.file", "access_loggers.file.v3", file, "FileAccessLog")
        ],
    }
    endpoint = {"endpoint": {"address": address("127.0.0.1", pod_port)}}
    cluster = {
        "name": "pods",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "pods", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    with running_envoy(manager, cluster, "--file-flush-interval-msec", "10") as running:
        yield running
