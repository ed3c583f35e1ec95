"""Servers that do nothing but send: the least that a server in Python spends on a streamed token.

`python -m edge_load.floors asgi|transport BOARD PORT` streams the same events as the sidecar does,
encoded once for each step: by uvicorn from an ASGI application, or written to the sockets of uvloop
without HTTP's server in between.
"""

import asyncio
import socket
import sys
import time
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop

from edge_load.board import STEPS, Board

_EVENT = (
    b'data: {"id":"cmpl-00000000000000000000000000000000","object":"text_completion",'
    b'"created":1700000000,"model":"instant","choices":[{"index":0,"text":" %04d",'
    b'"finish_reason":null,"logprobs":null}]}\n\n'
)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Ticks:
    """The steps: each is awaited by who likes to, and told to who asked for it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.event = b""
        self.next: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transports: set[asyncio.Transport] = set()

    async def run(self) -> None:
        """Tick at the pace of the board."""
        step = 0
        while True:
            await asyncio.sleep(self._board.interval_s or 0.0)
            step += 1
            self._board.stamp(step, time.monotonic())
            self.event = _EVENT % (step % STEPS)
            framed = b"%x\r\n%b\r\n" % (len(self.event), self.event)
            for transport in self.transports:
                transport.write(framed)
            waiting, self.next = self.next, asyncio.get_running_loop().create_future()
            waiting.set_result(None)


class Writer(asyncio.Protocol):
    """Answers the first bytes of a connection with a stream."""

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own, of no common base

    def data_received(self, data: bytes) -> None:
        """Begin the stream."""
        del data
        if self._transport is not None and self._transport not in self._ticks.transports:
            self._transport.write(_HEAD)
            self._ticks.transports.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        del exc
        if self._transport is not None:
            self._ticks.transports.discard(self._transport)


async def serve(kind: str, board: Board, port: int) -> None:
    """Serve until killed."""
    ticks = Ticks(board)
    running = asyncio.create_task(ticks.run())
    if kind == "transport":
        await asyncio.get_running_loop().create_server(lambda: Writer(ticks), "127.0.0.1", port)
        await running
        return

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            await ticks.next
            await send({"type": "http.response.body", "body": ticks.event, "more_body": True})

    config = uvicorn.Config(stream, http="httptools", lifespan="off", log_level="error")
    await uvicorn.Server(config).serve([socket.create_server(("127.0.0.1", port), backlog=2048)])


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Board(Path(sys.argv[2])), int(sys.argv[3])))
