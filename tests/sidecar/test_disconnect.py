"""A client that leaves takes its request with it."""

import json
import socket
from collections.abc import Callable

import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until


@pytest.fixture
def script() -> Script:
    return Script(reply="never ending", hold_after=2)


def send(
    sidecar: Sidecar,
    body: dict[str, object],
    *,
    receive_buffer: int = 2**16,
    timeout_ms: int = 60_000,
) -> socket.socket:
    """A bare connection, so that closing it is closing it, and reading nothing reads nothing."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: test\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n"
        f"x-request-timeout-ms: {timeout_ms}\r\n\r\n"
    )
    connection = socket.socket()
    connection.settimeout(30)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect(("127.0.0.1", sidecar.settings.port))
    connection.sendall(head.encode() + content)
    return connection


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
def test_the_engine_is_told_at_once(sidecar: Sidecar, engine: ScriptedEngine, stream: bool) -> None:
    """Otherwise its blocks would stay taken for an answer that nobody reads."""
    connection = send(sidecar, {"model": "scripted", "prompt": "Hi", "stream": stream})
    wait_until(lambda: engine.running == 1)
    if stream:
        connection.recv(100)

    connection.close()

    wait_until(lambda: engine.aborted == [engine.submitted[0].id])
    wait_until(lambda: outcomes(sidecar) == ["cancelled"])


def test_every_prompt_of_the_request_is_given_up(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """One connection, three requests in the engine."""
    connection = send(sidecar, {"model": "scripted", "prompt": ["a", "b", "c"]})
    wait_until(lambda: engine.running == 3)

    connection.close()

    wait_until(lambda: engine.running == 0)
    assert sorted(engine.aborted) == sorted(submit.id for submit in engine.submitted)


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param(
            {"write_timeout_s": 1.0},
            marks=pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux's own"),
            id="for too long",
        ),
        pytest.param({"max_unread_bytes": 64 * 1024}, id="too much"),
    ],
)
def test_a_client_that_reads_nothing_has_left(
    engine: ScriptedEngine, start: Callable[..., Sidecar], limit: dict[str, float]
) -> None:
    """It holds neither blocks nor the drain; the answer is larger than any buffer on the way."""
    engine.script.hold_after = 300
    engine.script.reply = "x" * 480
    sidecar = start(**limit)
    wait_until(sidecar.ready)
    sidecar.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # inherited
    body = {"model": "scripted", "prompt": "Hi", "stream": True, "max_tokens": 480}

    with send(sidecar, {**body, "n": 16, "logprobs": 20}, receive_buffer=4096):
        wait_until(lambda: outcomes(sidecar) == ["cancelled"] * 16, within_s=120)

    wait_until(lambda: engine.running == 0)


def test_a_slow_reader_does_not_hold_up_the_deadline(
    engine: ScriptedEngine, sidecar: Sidecar
) -> None:
    """What is generated waits for the client in memory, and never the request for the client."""
    engine.script.hold_after = 300
    engine.script.reply = "x" * 480
    body = {"model": "scripted", "prompt": "Hi", "stream": True, "max_tokens": 480, "n": 8}

    with send(sidecar, body, receive_buffer=4096, timeout_ms=3000) as connection:
        wait_until(lambda: engine.running == 0 and bool(outcomes(sidecar)), within_s=120)
        received = b""
        while b"deadline_exceeded" not in received[-1000:]:
            received += connection.recv(65536)

    assert set(outcomes(sidecar)) == {"timeout"}


def outcomes(sidecar: Sidecar) -> list[str]:
    requests = sidecar.admin.get("/runtime/telemetry").json()["requests"]
    return [request["outcome"] for request in requests]
