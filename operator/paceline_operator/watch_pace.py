"""Pause before a watch whose predecessor was ended at once.

An API server in trouble, or a proxy before it, may answer each watch with an empty stream. Kopf
takes that for the end that every watch comes to, and opens the next without a pause, for ever.
client-go holds such a watch for an error and backs off, and so do we: in kopf's own session.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Final

import aiohttp
import kopf
from yarl import URL

from paceline_operator.metrics import Metrics

_AT_ONCE_S: Final = 1.0
"""As in client-go. A watch lives for five minutes as a rule."""
_ERRORS: Final = 400


class Backoffs:
    """Pauses between the tries of a list or watch, without an end.

    Kopf's own list ends after 54 s, and with it, for good, the watch: an API server may be away
    for longer. The longest pause is short enough for a watch to be back within a minute, and
    eight watches that try every 30 s are no load.
    """

    def __iter__(self) -> Iterator[float]:
        """Begin anew for each request."""
        return chain((0.5, 1.0, 2.0, 4.0, 8.0, 15.0), repeat(30.0))


@dataclass(frozen=True, kw_only=True)
class PacedSession(kopf.AiohttpSession):
    """Kopf's way to the API server; it is another one only with other credentials.

    Kopf asks for new ones when the API server refuses these, and must see if they are the same.
    """

    aiohttp_session: aiohttp.ClientSession = field(compare=False)
    credentials: kopf.ConnectionInfo


@dataclass(slots=True)
class WatchPace:
    """Remembers when each watch was opened last, by its path."""

    metrics: Metrics
    clock: Callable[[], float]
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _opened_at: dict[str, float] = field(init=False, default_factory=dict)
    _backoffs: dict[str, Iterator[float]] = field(init=False, default_factory=dict)

    def session(self, credentials: kopf.ConnectionInfo) -> PacedSession:
        """Open the session that kopf would, and listen to what it asks."""
        return PacedSession(
            server=credentials.server,
            default_namespace=credentials.default_namespace,
            priority=credentials.priority,
            expiration=credentials.expiration,
            credentials=credentials,
            aiohttp_session=aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=credentials.as_ssl_context()),
                headers=credentials.as_http_headers(),
                proxy=credentials.proxy_url,
                trust_env=credentials.trust_env,
                trace_configs=[self.trace()],
            ),
        )

    def trace(self) -> aiohttp.TraceConfig:
        """Make what a session calls before and after each request."""
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._before)
        trace.on_request_end.append(self._after)
        return trace

    async def _before(
        self,
        _: aiohttp.ClientSession,
        __: SimpleNamespace,
        request: aiohttp.TraceRequestStartParams,
    ) -> None:
        if not _is_watch(request.url):
            return
        path = request.url.path
        if self.clock() - self._opened_at.pop(path, -math.inf) >= _AT_ONCE_S:
            self._backoffs.pop(path, None)
            return
        self.metrics.watch_pauses.labels(request.url.name).inc()
        await self.sleep(next(self._backoffs.setdefault(path, iter(Backoffs()))))

    async def _after(
        self,
        _: aiohttp.ClientSession,
        __: SimpleNamespace,
        request: aiohttp.TraceRequestEndParams,
    ) -> None:
        if _is_watch(request.url) and request.response.status < _ERRORS:
            self._opened_at[request.url.path] = self.clock()
            self.metrics.watch_starts.labels(request.url.name).inc()


def _is_watch(url: URL) -> bool:
    return url.query.get("watch") == "true"
