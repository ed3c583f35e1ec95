"""Gives each request an arrival time and an id, and each answer the headers that tell them."""

import re
import time
import uuid
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline_sidecar.anthropic.error_response import is_of_messages
from paceline_sidecar.tracing.trace import Trace

_HEADER = "x-request-id"
_ANTHROPIC_HEADER = "request-id"
_PROCESSING = "openai-processing-ms"
_TRACE_HEADER = "traceresponse"
_KEPT_TO_ITSELF = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
}
"""Answers belong to one caller: no cache keeps them, no browser reads them as something else.

No answer allows another origin (CORS): pages in browsers reach this port through their own server.
"""
_SAFE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_KEPT_IN_SCOPE = (
    *("type", "asgi", "http_version", "server", "client", "scheme", "method"),
    *("root_path", "path", "raw_path", "query_string", "headers"),
    *("arrived_at", "request_id", "answer_headers", "trace"),
)
"""The fields of an HTTP scope in ASGI, and those that are read here when an answer begins."""
PREPARED_STREAM: Final = "paceline.prepared_stream"
"""The key of a request's scope under which a prepared stream waits to be run."""


class EveryAnswer:
    """The outermost middleware; it sets `scope["arrived_at"]`, the start of TTFT.

    A stream is run from here, after the layers that prepared it have returned. Run inside of them,
    it would hold their frames for as long as it lasts, and with them two fifths more memory.
    """

    def __init__(
        self, app: ASGIApp, leaving: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """While `leaving()` returns true, each answer closes its connection."""
        self._app = app
        self._leaving = leaving
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["arrived_at"] = self._clock()
        offered = Headers(scope=scope).get(_HEADER, "")
        scope["request_id"] = offered if _SAFE.fullmatch(offered) else uuid.uuid4().hex

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_headers(scope, self._clock()))
                if self._leaving():
                    headers["connection"] = "close"
                trace: Trace | None = scope.get("trace")
                if trace is not None:
                    headers[_TRACE_HEADER] = trace.header
                    trace.status, trace.answer_at = message["status"], self._clock()
            await send(message)

        try:
            try:
                await self._app(scope, receive, send_with_headers)
            except BaseException as error:
                if PREPARED_STREAM in scope:
                    scope.pop(PREPARED_STREAM).abandon(error)
                raise
            if PREPARED_STREAM in scope:
                stream = scope[PREPARED_STREAM]
                # What the frameworks have left in it would stay as long as the stream.
                kept = {name: scope[name] for name in _KEPT_IN_SCOPE if name in scope}
                scope.clear()
                scope.update(kept)
                await stream.run(receive, send_with_headers)
        finally:
            if "trace" in scope:
                scope["trace"].finish(self._clock())


def _headers(scope: Scope, now: float) -> dict[str, str]:
    """Return what every answer carries.

    The time is that up to the answer's first byte; OpenAI's clients log both. What serves the
    request may leave more in `scope["answer_headers"]`, which is asked at that moment.
    """
    processing_ms = round((now - scope["arrived_at"]) * 1e3)
    own = {_HEADER: scope["request_id"], _PROCESSING: str(processing_ms)}
    headers = own | _KEPT_TO_ITSELF
    if is_of_messages(scope["path"]):
        headers[_ANTHROPIC_HEADER] = scope["request_id"]
    told: Callable[[], dict[str, str]] | None = scope.get("answer_headers")
    return headers if told is None else {**headers, **told()}
