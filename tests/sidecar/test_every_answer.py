"""A stream that was prepared is run when the layers that prepared it are gone, or given up."""

from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from paceline_sidecar.every_answer import PREPARED_STREAM, EveryAnswer


class _Stream:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.given_up: BaseException | None = None
        self.scope: dict[str, Any] = {}

    def abandon(self, error: BaseException) -> None:
        self.given_up = error

    async def run(self, receive: Receive, send: Send) -> None:
        del receive
        await send({"type": "http.response.start", "status": 200, "headers": []})


def _scope() -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": "/", "http_version": "1.1", "headers": []}


async def _receive() -> Message:
    pytest.fail("nobody reads on")


async def test_nothing_of_the_framework_is_left_while_a_stream_runs() -> None:
    """What it put into the request's scope would stay as long as the answer lasts."""
    scope, stream, sent = _scope(), _Stream(), list[Message]()

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        scope["framework"] = object()
        scope[PREPARED_STREAM] = stream

    async def send(message: Message) -> None:
        stream.scope = dict(scope)
        sent.append(message)

    await EveryAnswer(app, leaving=lambda: True)(scope, _receive, send)

    assert set(stream.scope) == {*_scope(), "arrived_at", "request_id"}
    names = {name for name, _ in sent[0]["headers"]}
    assert {b"x-request-id", b"openai-processing-ms", b"connection"} <= names


async def test_a_stream_is_given_up_where_its_preparation_fails() -> None:
    """What it holds in the engine would run on for nobody."""
    stream = _Stream()

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        scope[PREPARED_STREAM] = stream
        raise RuntimeError("too late")

    async def send(_: Message) -> None:
        pytest.fail("nothing is answered")

    with pytest.raises(RuntimeError, match="too late") as raised:
        await EveryAnswer(app, leaving=lambda: False)(_scope(), _receive, send)

    assert stream.given_up is raised.value
