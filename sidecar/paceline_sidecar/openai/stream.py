"""An exchange as server-sent events, for as long as the client listens."""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline_sidecar.connection import while_connected
from paceline_sidecar.errors import ClientLeft, SidecarError
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.generation import Delta
from paceline_sidecar.openai.responses import ResponseBuilder


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
            await _send(send, self._builder.failure(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        opening = self._builder.opening(self._exchange.generations)
        if opening:
            await _send(send, opening)
        following = self._first
        while following is not None:
            index, delta = following
            piece = self._builder.piece(index, delta)
            if piece:
                await _send(send, piece)
            following = await self._exchange.next()
        await _send(send, self._builder.closing())


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
