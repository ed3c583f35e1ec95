"""Serves the page and its events on loopback: GET alone, to pages of its own address alone.

There are three answers: the page, its events, and a refusal. A request that names another host is
refused, so that no other site reads the page through a name that leads to loopback.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from paceline_cli.live_page.content import content
from paceline_cli.live_page.history import Past
from paceline_cli.live_page.reading import PodReader, Reading
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.up.live import LiveService
from paceline_cli.up.screen import LiveView
from paceline_page.document import document
from paceline_tuner.pods import PodClient

_HOST: Final = "127.0.0.1"
_EVERY_S: Final = 2.0
_HEAD_S: Final = 5.0
_MAX_HEAD_BYTES: Final = 16 * 1024
_MAX_CONNECTIONS: Final = 32
_TROUBLES: Final = (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, TimeoutError)

_log = logging.getLogger(__name__)


class LivePage:
    """The page of one service. Telemetry is read only while somebody looks."""

    def __init__(
        self,
        live: LiveService,
        pods: PodClient,
        view: Callable[[], LiveView] | None = None,
        *,
        every_s: float = _EVERY_S,
    ) -> None:
        """Show `view`, by default the service's own, anew every `every_s`."""
        self._live = live
        self._view = view or live.view
        self._every_s = every_s
        self._history = Past()
        self._reader = PodReader(pods, lambda: next(iter(live.target.pods), None))
        self._num_viewers = 0
        self._is_looked_at = asyncio.Event()
        self._news = asyncio.Condition()
        self._number = 0
        self._newest = b""
        self._connections: set[asyncio.Task[None]] = set()
        self._own_hosts: set[str] = set()
        live.on_report.append(lambda report: self._history.add(self._view().spec, report))

    def content(self, reading: Reading | None) -> bytes:
        """Return what the page shows now, as JSON."""
        history = self._history
        return msgspec.json.encode(content(self._view(), history.points, history.changes, reading))

    @contextlib.asynccontextmanager
    async def served(self, port: int = 0) -> AsyncIterator[str]:
        """Serve inside the block, by default on a free port; the block is given the address."""
        async with asyncio.TaskGroup() as group:
            server = await asyncio.start_server(self._connected, _HOST, port, limit=_MAX_HEAD_BYTES)
            port = server.sockets[0].getsockname()[1]
            self._own_hosts = {f"{_HOST}:{port}", f"localhost:{port}"}
            following = group.create_task(self._follow())
            try:
                yield f"http://{_HOST}:{port}/"
            finally:
                server.close()
                following.cancel()
                for connection in self._connections:
                    connection.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    async def _follow(self) -> None:
        """Make the content anew while somebody looks, forever."""
        while True:
            await self._is_looked_at.wait()
            try:
                newest = self.content(await self._reader.read())
            except Exception:  # noqa: BLE001 - the service is served on, whatever its page lacks
                _log.exception("the page could not be made")
            else:
                async with self._news:
                    self._newest, self._number = newest, self._number + 1
                    self._news.notify_all()
            await asyncio.sleep(self._every_s)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this as a task
        self._connections.add(task)
        try:
            await self._answer(reader, writer)
        except (*_TROUBLES, asyncio.CancelledError):
            pass  # the browser has left, or the service ends
        finally:
            self._connections.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) > _MAX_CONNECTIONS:
            await self._send(writer, "503 Service Unavailable", b"Too many look at this page.")
            return
        async with asyncio.timeout(_HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, _, rest = lines[0].partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        hosts = [line[5:].strip().lower() for line in lines[1:] if line[:5].lower() == "host:"]
        if len(hosts) != 1 or hosts[0] not in self._own_hosts:
            await self._send(writer, "421 Misdirected Request", b"This page has another address.")
        elif method != "GET":
            await self._send(writer, "405 Method Not Allowed", b"Only GET.", "Allow: GET")
        elif path == "/":
            await self._send(writer, "200 OK", document().html, kind="text/html")
        elif path == "/events":
            await self._stream(reader, writer)
        else:
            await self._send(writer, "404 Not Found", b"There is only the page at /.")

    async def _send(
        self,
        writer: asyncio.StreamWriter,
        status: str,
        body: bytes,
        *headers: str,
        kind: str = "text/plain",
    ) -> None:
        length = f"Content-Length: {len(body)}"
        writer.write(self._head(status, kind, length, *headers) + body)
        await writer.drain()

    def _head(self, status: str, kind: str, *headers: str) -> bytes:
        lines = (
            f"HTTP/1.1 {status}",
            f"Content-Type: {kind}; charset=utf-8",
            f"Content-Security-Policy: {document().policy}",
            "Cross-Origin-Resource-Policy: same-origin",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            "Cache-Control: no-store",
            "Connection: close",
            *headers,
        )
        return "".join(f"{line}\r\n" for line in (*lines, "")).encode()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send each new content until the browser leaves."""
        writer.write(self._head("200 OK", "text/event-stream") + b"retry: 1000\n\n")
        self._num_viewers += 1
        self._is_looked_at.set()
        gone = asyncio.create_task(reader.read(1))
        try:
            sent = self._number
            while not gone.done():
                async with self._news:
                    await self._news.wait_for(lambda: self._number != sent)  # noqa: B023 - awaited here
                    sent, newest = self._number, self._newest
                writer.write(b"data: " + newest + b"\n\n")
                await writer.drain()
        finally:
            gone.cancel()
            self._num_viewers -= 1
            if not self._num_viewers:
                self._is_looked_at.clear()


@contextlib.asynccontextmanager
async def page_of(
    live: LiveService, view: Callable[[], LiveView] | None = None
) -> AsyncIterator[str]:
    """Serve the page of a service inside the block, which is given its address."""
    async with HttpxPodClient() as pods, LivePage(live, pods, view).served() as address:
        live.page_url = address
        yield address
