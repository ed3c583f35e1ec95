"""An exchange as server-sent events, written as the engine's outputs come.

No task is woken for a token: the engine's message is read, and each output in it becomes bytes and
goes to its client's socket. The task of the request only waits for the end, or for its client to
leave (docs/decisions/0056).
"""

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from paceline_sidecar.bounded_protocol import EXTENSION, StreamWriter
from paceline_sidecar.errors import ClientLeft, SidecarError
from paceline_sidecar.every_answer import PREPARED_STREAM
from paceline_sidecar.exchange import Exchange
from paceline_sidecar.generation import Delta
from paceline_sidecar.openai.responses import ResponseBuilder

_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # A proxy that buffers would turn tokens into lumps.
    (b"x-accel-buffering", b"no"),
)


class EventStream(Response):
    """Sends an exchange's outputs as events, and closes it however the stream ends."""

    def __init__(
        self, exchange: Exchange, builder: ResponseBuilder, first: tuple[int, Delta] | None
    ) -> None:
        self.status_code = 200
        self.background = None
        self._exchange = exchange
        self._builder = builder
        self._first = first
        self._writer: StreamWriter
        self._is_over = False
        self._error: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Leave the answer to the outermost layer."""
        del receive, send
        self._writer = scope["extensions"][EXTENSION]["writer"]
        scope[PREPARED_STREAM] = self

    def abandon(self, error: BaseException) -> None:
        """Give the stream up that was to be run."""
        self._exchange.close(error)

    async def run(self, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            with self._exchange:
                self._writer.open()
                await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS]})
                self._begin()
                await self._ended(receive)
        except ClientLeft:
            return
        except SidecarError as error:
            # The status is sent already: the last event says what went wrong.
            self._writer.write(self._builder.failure(error))
        self._writer.flush()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def take(self, index: int, delta: Delta) -> None:
        """Write the next piece of one choice, as the exchange's `Reader`."""
        data = self._builder.piece(index, delta)
        if delta.finish is not None and self._exchange.is_complete:
            self._writer.write(data + self._builder.closing())
            self._end()
        elif data:
            self._writer.write(data)

    def fail(self, error: Exception) -> None:
        """End with an error, as the exchange's `Reader`."""
        self._error = error
        self._end()

    def _begin(self) -> None:
        opening = self._builder.opening(self._exchange.generations)
        if opening:
            self._writer.write(opening)
        if self._first is not None:
            self.take(*self._first)
        self._exchange.pass_to(self)

    async def _ended(self, receive: Receive) -> None:
        """Return when the last piece is written; raise what ended it before."""
        while not self._is_over:
            if (await receive())["type"] == "http.disconnect":
                raise ClientLeft("The client closed the connection.")
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        self._is_over = True
        self._writer.wake()
