"""A client that leaves takes its request with it."""

import json
import socket

import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until


@pytest.fixture
def script() -> Script:
    return Script(reply="never ending", hold_after=2)


def send(sidecar: Sidecar, body: dict[str, object]) -> socket.socket:
    """A bare connection, so that closing it is closing it."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: test\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", sidecar.settings.port), timeout=30)
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


def outcomes(sidecar: Sidecar) -> list[str]:
    requests = sidecar.admin.get("/runtime/telemetry").json()["requests"]
    return [request["outcome"] for request in requests]
