"""An exchange as server-sent events, for as long as the client listens."""

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline_sidecar.connection import while_connected
from paceline_sidecar.errors import ClientLeft, SidecarError
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.generation import Delta
from paceline_sidecar.openai.error_response import body_of
from paceline_sidecar.openai.responses import ResponseBuilder, usage_of

_encode = msgspec.json.Encoder().encode


class EventStream(Response):
    """Sends an exchange's outputs as events, and closes it however the stream ends."""

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self, exchange: Exchange, builder: ResponseBuilder, first: tuple[int, Delta] | None
    ) -> None:
        self.status_code = 200
        self.background = None
        # A proxy that buffers would turn tokens into lumps.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._exchange = exchange
        self._builder = builder
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del scope
        try:
            with self._exchange:
                await while_connected(receive, self._events(send))
        except ClientLeft:
            return
        except SidecarError as error:
            # The status is sent already: the last event says what went wrong.
            await _send(send, _event(body_of(error)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        opening = self._builder.first_chunks(len(self._exchange.generations))
        if opening:
            await _send(send, b"".join(_event(chunk) for chunk in opening))
        following = self._first
        while following is not None:
            index, delta = following
            piece = self._builder.chunk(index, delta)
            if piece is not None:
                await _send(send, _event(piece))
            following = await self._exchange.next()
        if self._builder.include_usage:
            usage = usage_of(self._exchange.generations)
            await _send(send, _event(self._builder.usage_chunk(usage)))
        await _send(send, b"data: [DONE]\n\n")


def _event(message: msgspec.Struct) -> bytes:
    return b"data: " + _encode(message) + b"\n\n"


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
