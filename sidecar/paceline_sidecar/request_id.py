"""Notes when a request arrived; its answer says how long that is ago, and which request it was."""

import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline_sidecar.anthropic.error_response import is_of_messages

_HEADER = "x-request-id"
_ANTHROPIC_HEADER = "request-id"
_PROCESSING = "openai-processing-ms"
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


class RequestId:
    """Outermost: `scope["arrived_at"]` is the start of TTFT."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["arrived_at"] = self._clock()
        offered = Headers(scope=scope).get(_HEADER, "")
        scope["request_id"] = offered if _SAFE.fullmatch(offered) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(answer_headers(scope, self._clock()))
            await send(message)

        await self._app(scope, receive, send_with_id)


def answer_headers(scope: Scope, now: float) -> dict[str, str]:
    """Return what every answer carries, to a request that `RequestId` has seen.

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
