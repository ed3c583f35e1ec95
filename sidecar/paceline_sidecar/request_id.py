"""Notes when a request arrived and gives it an id that its answer carries."""

import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = "x-request-id"
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
        request_id = offered if _SAFE.fullmatch(offered) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append(_HEADER, request_id)
            await send(message)

        await self._app(scope, receive, send_with_id)
