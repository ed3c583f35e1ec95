"""A stranger's connection: how long a request may take to come, how much of it, how many."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable

import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine
from paceline_testing.waiting import wait_until

HEAD = b"GET /health/live HTTP/1.1\r\nhost: test\r\n"
BODY = json.dumps({"model": "scripted", "prompt": "Hi"}).encode()


def connect(sidecar: Sidecar) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", sidecar.settings.port))
    connection.settimeout(60)
    return connection


def until_closed(connection: socket.socket) -> bytes:
    received = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return received
        if not piece:
            return received
        received += piece


def error_of(received: bytes) -> tuple[int, str, str]:
    """Status, `type` and `code` of the one answer, which says that it is the last."""
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    return int(head.split()[1]), error["type"], error["code"]


def dribble(connection: socket.socket, piece: bytes) -> threading.Thread:
    """Send a piece again and again until the other side has closed."""

    def send() -> None:
        try:
            while True:
                connection.sendall(piece)
                time.sleep(0.01)
        except OSError:
            return

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("begun", "piece"),
    [(b"GET / HTTP/1.1\r\n", b"a: b\r\n"), (b"", b"\r\n")],
    ids=["headers without end", "line ends before a request"],
)
def test_a_head_that_never_ends_is_refused(
    start: Callable[..., Sidecar], begun: bytes, piece: bytes
) -> None:
    """Each piece alone is legal: it is the whole that has a time limit."""
    sidecar = start(header_timeout_s=2.0)

    with connect(sidecar) as connection:
        connection.sendall(begun)
        sender = dribble(connection, piece)
        received = until_closed(connection)
    sender.join()

    assert error_of(received) == (408, "invalid_request_error", "request_timeout")


def test_a_second_head_that_never_ends_is_refused(start: Callable[..., Sidecar]) -> None:
    """A kept-alive connection is no way around the limit."""
    sidecar = start(header_timeout_s=2.0)

    with connect(sidecar) as connection:
        connection.sendall(HEAD + b"\r\n")
        first = connection.recv(65536)
        connection.sendall(HEAD)
        received = until_closed(connection)

    assert first.startswith(b"HTTP/1.1 200")
    assert error_of(received)[0] == 408


def test_a_connection_that_says_nothing_is_closed(start: Callable[..., Sidecar]) -> None:
    """Without an answer, for nothing was asked."""
    sidecar = start(header_timeout_s=2.0)

    with connect(sidecar) as connection:
        assert until_closed(connection) == b""


def test_an_idle_connection_is_closed(start: Callable[..., Sidecar]) -> None:
    """After its answer, without a word."""
    sidecar = start(keep_alive_s=1)

    with connect(sidecar) as connection:
        connection.sendall(HEAD + b"\r\n")
        received = until_closed(connection)

    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("framing", "piece"),
    [(b"content-length: 1000000", b" "), (b"transfer-encoding: chunked", b"1\r\n \r\n")],
    ids=["length", "chunked"],
)
def test_a_body_that_never_ends_is_refused(
    start: Callable[..., Sidecar], framing: bytes, piece: bytes
) -> None:
    """However steadily it drips, below the least pace."""
    sidecar = start(body_timeout_s=0.3)
    wait_until(sidecar.ready)

    with connect(sidecar) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n" + framing + b"\r\n\r\n")
        sender = dribble(connection, piece)
        received = until_closed(connection)
    sender.join()

    assert error_of(received) == (408, "invalid_request_error", "request_timeout")


@pytest.mark.parametrize("length", [70_000, 400_000], ids=["70 KB", "more than one read"])
@pytest.mark.parametrize("ending", [b"\r\n\r\n", b""], ids=["whole", "unending"])
def test_a_head_that_is_too_long_is_refused(
    start: Callable[..., Sidecar], length: int, ending: bytes
) -> None:
    """Whether its end has come or not."""
    sidecar = start()

    with connect(sidecar) as connection:
        connection.sendall(HEAD + b"x-long: " + b"a" * length + ending)
        received = until_closed(connection)

    assert error_of(received) == (431, "invalid_request_error", "header_too_large")


def test_many_small_headers_are_counted_together(start: Callable[..., Sidecar]) -> None:
    """None of them is long."""
    sidecar = start()

    with connect(sidecar) as connection:
        connection.sendall(HEAD + b"a: b\r\n" * 10_000 + b"\r\n")
        received = until_closed(connection)

    assert error_of(received)[0] == 431


@pytest.mark.usefixtures("engine")
def test_a_long_body_before_a_head_is_not_counted(start: Callable[..., Sidecar]) -> None:
    """Two requests in one piece, the first with more bytes than a head may have."""
    sidecar = start(max_header_bytes=1024)
    wait_until(sidecar.ready)
    body = BODY + b" " * 5000
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)

    with connect(sidecar) as connection:
        connection.sendall(head + body + HEAD)
        connection.sendall(b"connection: close\r\n\r\n")
        received = until_closed(connection)

    assert received.count(b"HTTP/1.1 200") == 2


def test_what_is_not_http_is_refused(start: Callable[..., Sidecar]) -> None:
    """In the shape of every other error."""
    sidecar = start()

    with connect(sidecar) as connection:
        connection.sendall(b"\x16\x03\x01 hello?\r\n\r\n")
        received = until_closed(connection)

    assert error_of(received) == (400, "invalid_request_error", "invalid_http")


@pytest.mark.parametrize(
    "changes",
    [{"max_connections": 2}, {"max_connections_per_address": 2}],
    ids=["in all", "from one address"],
)
def test_one_connection_too_many_is_told_so(
    start: Callable[..., Sidecar], changes: dict[str, int]
) -> None:
    """The others are served, and when one of them leaves, the next may come."""
    sidecar = start(**changes)
    first, second = connect(sidecar), connect(sidecar)
    for connection in (first, second):
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")

    with connect(sidecar) as third:
        refused = until_closed(third)
    first.close()
    wait_until(lambda: _is_served(sidecar))
    second.sendall(HEAD + b"\r\n")

    assert error_of(refused) == (503, "service_unavailable_error", "too_many_connections")
    assert b"retry-after: 1" in refused
    assert second.recv(65536).startswith(b"HTTP/1.1 200")
    second.close()


def _is_served(sidecar: Sidecar) -> bool:
    with connect(sidecar) as connection:
        connection.sendall(HEAD + b"\r\n")
        return connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_closed_connections_are_counted_by_reason(start: Callable[..., Sidecar]) -> None:
    """Whoever watches a pod sees that strangers knock."""
    sidecar = start()
    for sent in (b"hello\r\n\r\n", HEAD + b"x-a: " + b"a" * 70_000 + b"\r\n\r\n"):
        with connect(sidecar) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            until_closed(connection)

    counted = sidecar.public.get("/metrics").text

    for reason in ("invalid_http", "header_too_large"):
        line = rf'^paceline_refused_connections_total{{.*reason="{reason}".*}} 1\.0$'
        assert re.search(line, counted, re.MULTILINE), reason


def test_who_asks_for_http_2_is_answered_in_http_1(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Java's client asks in its first request to a server, and sends the body nevertheless."""
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\n"
        b"upgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\ncontent-length: %d\r\n\r\n"
    )

    with connect(sidecar) as connection:
        connection.sendall(head % len(BODY))
        connection.sendall(BODY + HEAD + b"connection: close\r\n\r\n")
        received = until_closed(connection)

    assert received.count(b"HTTP/1.1 200") == 2
    assert b"Hello, world!" in received
    assert len(engine.submitted) == 1


def test_trailers_are_read_past(sidecar: Sidecar) -> None:
    """What follows a body in chunks is no header of the request."""
    head = b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\nx-late: yes\r\n\r\n" % (len(BODY), BODY)

    with connect(sidecar) as connection:
        connection.sendall(head + body + HEAD + b"connection: close\r\n\r\n")
        received = until_closed(connection)

    assert received.count(b"HTTP/1.1 200") == 2


@pytest.mark.usefixtures("engine")
def test_a_stream_in_http_1_0_has_no_chunks(sidecar: Sidecar) -> None:
    """Its end is the connection's."""
    body = json.dumps({"model": "scripted", "prompt": "Hi", "stream": True}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nhost: a\r\ncontent-length: %d\r\n\r\n"

    with connect(sidecar) as connection:
        connection.sendall(head % len(body) + body)
        received = until_closed(connection)

    headers, _, content = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in headers
    assert content.startswith(b"data: {")
    assert content.endswith(b"data: [DONE]\n\n")
