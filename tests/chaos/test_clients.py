"""The clients against a small server that answers, refuses and breaks off as it is told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Literal

from chaos.clients import MAX_TOKENS, clients
from chaos.streams import PROMPTS, Stream
from paceline_testing.waiting import wait_until

Step = Literal["whole", "cut", "unavailable", "error event"]


def chunk(text: str, finish_reason: str | None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    event = {"id": "x", "object": "text_completion", "created": 1, "model": "m"}
    return b"data: " + json.dumps(event | {"choices": [choice]}).encode() + b"\n\n"


class Server(ThreadingHTTPServer):
    """Does the steps one after the other, and answers whole once they are done."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, steps: list[Step]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.steps = steps
        self.bodies: list[dict[str, Any]] = []
        self.ports: list[int] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        server.ports.append(self.client_address[1])
        step: Step = server.steps.pop(0) if server.steps else "whole"
        if step == "unavailable":
            self.send_response(503)
            self.send_header("retry-after-ms", "1")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self._send(chunk(" Pa", None))
        if step == "error event":
            self._send(b'data: {"error": {"message": "the engine was lost"}}\n\n')
        elif step == "whole":
            self._send(chunk("ris", "stop") + b"data: [DONE]\n\n")
            self._send(b"")
        self.close_connection = step != "whole"

    def _send(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def log_message(self, format: str, *_args: object) -> None:
        pass


@contextmanager
def serving(*steps: Step) -> Iterator[Server]:
    with Server(list(steps)) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def first(server: Server) -> Stream:
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with clients(url, model="m", count=1, seed=1) as streams:
        wait_until(lambda: streams)
    return streams[0]


def test_a_whole_answer_is_recorded_with_its_connection() -> None:
    """The node's connection table knows a stream by the port of its client."""
    with serving() as server:
        stream = first(server)

    assert (stream.text, stream.finish_reason, stream.error) == (" Paris", "stop", "")
    assert stream.port == server.ports[0]
    assert stream.num_retries == 0
    assert stream.first_byte_at is not None
    assert server.bodies[0]["temperature"] == 0
    assert server.bodies[0]["max_tokens"] == MAX_TOKENS
    assert server.bodies[0]["prompt"] == PROMPTS[stream.prompt]


def test_503_before_the_first_byte_is_tried_twice_more() -> None:
    with serving("unavailable", "unavailable") as server:
        twice = first(server)
    with serving("unavailable", "unavailable", "unavailable") as server:
        thrice = first(server)

    assert (twice.text, twice.error, twice.num_retries) == (" Paris", "", 2)
    assert thrice.error
    assert thrice.first_byte_at is None


def test_a_stream_that_breaks_off_is_not_tried_again() -> None:
    """Its first tokens are out: nobody but the user may ask again."""
    for step in ("cut", "error event"):
        with serving(step) as server:
            stream = first(server)

        assert (stream.text, stream.finish_reason) == (" Pa", "")
        assert stream.error
        assert stream.first_byte_at is not None
