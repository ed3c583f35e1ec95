"""uvicorn's HTTP protocol with bounds: how long a request may take to come, and how much of it.

A connection reads heads and bodies in turn, each with a time limit, heads with a size limit too.
A request that exceeds a limit is answered with the usual error, unless another answer is being
written, and the connection is closed. Uvicorn itself limits only the time of idle connections, and
the size of heads only with h11
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from paceline_sidecar.openai.error_response import ErrorBody, ErrorObject

# Whoever sends a body at this pace is not refused, however large it is.
_LEAST_BYTES_PER_S = 16 * 1024
# After a refusal: closing at once would reset the connection before the client has read why.
_LINGER_S = 1.0

_log = logging.getLogger(__name__)

EXTENSION = "paceline.stream"
"""The ASGI extension whose `writer` is a `StreamWriter`."""

Phase = Literal["idle", "head", "body"]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one port allows its clients."""

    header_timeout_s: float
    body_timeout_s: float
    max_header_bytes: int
    max_connections: int
    max_connections_per_address: int | None
    max_unread_bytes: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: int
    type: str
    code: str
    message: str

    def response(self) -> bytes:
        """Return the whole answer, the last one of its connection."""
        body = msgspec.json.encode(ErrorBody(ErrorObject(self.message, self.type, None, self.code)))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n"
        retry = b"retry-after: 1\r\n" if self.status == 503 else b""  # noqa: PLR2004 - HTTP's
        return STATUS_LINE[self.status] + head % len(body) + retry + b"\r\n" + body


_BAD = "invalid_request_error"
_NOT_HTTP = _Refusal(400, _BAD, "invalid_http", "This is not HTTP/1.1.")
_TOO_SLOW = _Refusal(408, _BAD, "request_timeout", "The request took too long to arrive.")
_TOO_LONG = _Refusal(431, _BAD, "header_too_large", "The request's headers are too large.")
_TOO_MANY = _Refusal(
    503, "service_unavailable_error", "too_many_connections", "Too many connections are open."
)


class _HeadTooLong(Exception):  # noqa: N818 - never leaves this module
    """Ends the parsing of a head."""


class Outbox:
    """What one turn of the loop writes to streams, sent at its end, one stream after the other.

    A client that is woken by the first write of many is awake for the rest: a write between two
    computations wakes it each time, which costs as much as the write. What a step gives to the
    choices of one stream is one write.
    """

    def __init__(self) -> None:
        self._held: dict[StreamWriter, bytes] = {}

    def put(self, writer: "StreamWriter", data: bytes) -> None:
        """Hold a piece until the engine's message, with other streams' pieces, has been read."""
        held = self._held
        if not held:
            asyncio.get_running_loop().call_soon(self._send_all)
        before = held.get(writer)
        held[writer] = data if before is None else before + data

    def take(self, writer: "StreamWriter") -> bytes:
        """Return what is held for a stream, and hold it no more."""
        return self._held.pop(writer, b"")

    def _send_all(self) -> None:
        held, self._held = self._held, {}
        for writer, data in held.items():
            try:
                writer.send(data)
            except Exception:  # noqa: BLE001 - whatever is wrong with one, the others are served
                _log.exception("a stream could not be written to")


class StreamWriter:
    """Writes to a response that ASGI's `send` has begun, without a coroutine for each piece.

    The application ends the response with `send`, too, after a `flush`. It never waits for the
    client: what is not read yet is held, up to a bound.
    """

    __slots__ = ("_cycle", "_flow", "_max_unread_bytes", "_outbox")

    def __init__(
        self,
        cycle: RequestResponseCycle,
        flow: FlowControl,
        outbox: Outbox,
        max_unread_bytes: int,
    ) -> None:
        self._cycle = cycle
        self._flow = flow
        self._outbox = outbox
        self._max_unread_bytes = max_unread_bytes

    def open(self) -> None:
        """Prepare for the response; for HTTP/1.0, which has no chunked encoding, turn that off."""
        if self._cycle.scope["http_version"] == "1.0":
            self._cycle.chunked_encoding = False

    def write(self, data: bytes) -> None:
        """Write a piece of the body in this turn of the loop."""
        self._outbox.put(self, data)

    def flush(self) -> None:
        """Write now what has been written in this turn."""
        data = self._outbox.take(self)
        if data:
            self.send(data)

    def send(self, data: bytes) -> None:
        """Hand bytes to the socket; a client that has let too much lie is disconnected."""
        cycle = self._cycle
        if cycle.disconnected or cycle.response_complete:
            return
        transport = cycle.transport
        if cycle.chunked_encoding:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        transport.write(data)
        if self._flow.write_paused and transport.get_write_buffer_size() > self._max_unread_bytes:
            transport.abort()

    def wake(self) -> None:
        """Let the application's `receive` return, which waits for the client to leave."""
        self._cycle.message_event.set()


@dataclass(slots=True)
class Doors:
    """What the connections of one port share: their limits, their counts and the outbox."""

    limits: ConnectionLimits
    refused: Counter[str]
    """Connections that were closed with an error, counted by reason."""
    open: Counter[str] = field(default_factory=Counter)
    """Connections by address."""
    outbox: Outbox = field(default_factory=Outbox)

    def enter(self, address: str) -> bool:
        """Count a connection; return whether it may stay."""
        self.open[address] += 1
        most, most_of_one = self.limits.max_connections, self.limits.max_connections_per_address
        is_one_too_many = most_of_one is not None and self.open[address] > most_of_one
        return not is_one_too_many and self.open.total() <= most

    def leave(self, address: str) -> None:
        """Forget a connection."""
        self.open[address] -= 1
        if not self.open[address]:
            del self.open[address]


class BoundedProtocol(HttpToolsProtocol):
    """One connection. Its client's side is read in phases: idle, head, body."""

    def __init__(
        self,
        doors: Doors,
        *,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._doors = doors
        self._limits = doors.limits
        self._phase: Phase = "idle"
        self._num_messages = 0
        """Requests that have begun."""
        self._head_bytes = 0
        """Of the head that is being read, its names and values."""
        self._raw_bytes = 0
        """Of the head that is being read, as it came."""
        self._body_bytes = 0
        self._phase_began_at = 0.0
        self._watched: tuple[int, Phase] = (0, "idle")
        self._timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._is_replaying = False
        """Whether a new parser is being fed a head that was read before."""
        self._skips_upgrade = False
        """The request asks for another protocol, which it does not get."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection in, or tell it that there are too many."""
        super().connection_made(transport)
        self._watch((0, "head"))
        if not self._doors.enter(self._address):
            self._refuse(_TOO_MANY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._doors.leave(self._address)
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; refuse what is too long or not HTTP."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        began, was_idle = self._num_messages, self._phase == "idle"
        if was_idle:
            # The timer starts at the first byte; blank lines before a request do not start a head.
            self._phase, self._raw_bytes = "head", 0
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            is_too_long = isinstance(error.__context__, _HeadTooLong)
            self._refuse(_TOO_LONG if is_too_long else _NOT_HTTP)
            return
        # A head that begins behind the end of another request is counted from the next piece on.
        if self._phase == "head" and self._num_messages - began <= was_idle:
            self._raw_bytes += len(data)
            if self._raw_bytes > self._limits.max_header_bytes:
                self._refuse(_TOO_LONG)
                return
        self._watch((self._num_messages, self._phase))

    def _feed(self, data: bytes) -> None:
        rest = memoryview(data)
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = rest[upgrade.args[0] :]
                self._read_on()
            else:
                return

    def _read_on(self) -> None:
        """Go on with HTTP/1.1, as a server may that is asked for another protocol.

        The parser takes all that follows for the other protocol's; Java's client asks for HTTP/2
        in its first request to every server and sends the body nevertheless.
        """
        framing = [b"POST / HTTP/1.1"]
        framing += [
            name + b": " + value
            for name, value in self.headers
            if name in {b"content-length", b"transfer-encoding"}
        ]
        self.parser = httptools.HttpRequestParser(self)
        self._skips_upgrade = False
        self._is_replaying = True
        self.parser.feed_data(b"\r\n".join([*framing, b"", b""]))
        self._is_replaying = False

    def on_message_begin(self) -> None:
        """Begin a head."""
        if self._is_replaying:
            return
        self._num_messages += 1
        self._phase, self._head_bytes, self._raw_bytes = "head", 0, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Read the target or a piece of it."""
        if not self._is_replaying:
            self._count_head(len(url))
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header; what trails a body is counted and dropped."""
        if not self._is_replaying:
            self._count_head(len(name) + len(value) + len(b": \r\n"))
            if self._phase == "head":
                super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin a body; the application is started."""
        if self._is_replaying:
            return
        self._phase, self._body_bytes = "body", 0
        self._skips_upgrade = self.parser.should_upgrade()
        super().on_headers_complete()
        writer = StreamWriter(
            self.cycle, self.flow, self._doors.outbox, self._limits.max_unread_bytes
        )
        self.scope["extensions"] = {EXTENSION: {"writer": writer}}

    def on_body(self, body: bytes) -> None:
        """Read a piece of the body."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request."""
        if not self._skips_upgrade:
            self._phase = "idle"
            super().on_message_complete()

    def _should_upgrade(self) -> bool:
        return False

    def _count_head(self, num_bytes: int) -> None:
        self._head_bytes += num_bytes
        if self._head_bytes > self._limits.max_header_bytes:
            raise _HeadTooLong

    def _watch(self, watched: tuple[int, Phase]) -> None:
        """Start the time of a phase, unless it runs already; most requests never need one."""
        if watched == self._watched:
            return
        self._watched, self._phase_began_at = watched, time.monotonic()
        self._disarm()
        match watched[1]:
            case "head":
                self._arm(self._end_late_head, self._limits.header_timeout_s)
            case "body":
                self._arm(self._end_late_body, self._limits.body_timeout_s)

    def _arm(self, end: Callable[[], None], after_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(after_s, end)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_late_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # It comes behind a request that is being answered.
            self._arm(self._end_late_head, self._limits.header_timeout_s)
        elif self._phase == "idle":
            self.transport.close()  # not a byte came
        else:
            self._refuse(_TOO_SLOW)

    def _end_late_body(self) -> None:
        allowed_s = self._limits.body_timeout_s + self._body_bytes / _LEAST_BYTES_PER_S
        left_s = allowed_s - (time.monotonic() - self._phase_began_at)
        if self.flow.read_paused or self.pipeline:
            self._arm(self._end_late_body, self._limits.body_timeout_s)  # we do not read
        elif self.cycle.response_started:
            self.transport.close()  # answered before its end, and still it sends
        elif left_s > 0:
            self._arm(self._end_late_body, left_s)
        else:
            self._refuse(_TOO_SLOW)

    def _refuse(self, refusal: _Refusal) -> None:
        """Answer once more and close; what was asked before is given up."""
        self._is_refused = True
        self._doors.refused[refusal.code] += 1
        self._disarm()
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started or self.pipeline:
                self.transport.close()
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(refusal.response())
        self.flow.resume_reading()
        self._arm(self.transport.close, _LINGER_S)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""
