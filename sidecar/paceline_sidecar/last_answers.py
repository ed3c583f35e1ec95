"""While the server leaves, each answer is its connection's last."""

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class LastAnswers:
    """Adds `Connection: close` to what is answered while `leaving` says so."""

    def __init__(self, app: ASGIApp, leaving: Callable[[], bool]) -> None:
        self._app = app
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_as_last(message: Message) -> None:
            if message["type"] == "http.response.start" and self._leaving():
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_as_last if scope["type"] == "http" else send)
