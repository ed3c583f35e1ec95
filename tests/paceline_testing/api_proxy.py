"""A proxy before the API server: passes requests on, counts them, and does scripted faults.

It runs on loopback in a thread of its own and speaks plain HTTP to the operator, so that a test
can cut a stream in the middle, hold an answer back, or give an old one.
"""

import asyncio
import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import yaml
from aiohttp import web
from multidict import CIMultiDict

_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "apply", "DELETE": "delete"}
# Of one connection, not of what it carries.
_OF_THE_HOP: Final = frozenset({"connection", "content-length", "host", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the operator."""

    at: float
    """Monotonic."""
    verb: str
    """get, list, watch, create, update, apply or delete."""
    resource: str
    """The plural, with its subresource: `inferenceservices/status`."""
    namespace: str
    name: str
    is_dry: bool = False
    """Nothing is written."""
    client: str = ""
    """The User-Agent."""
    status: int = 0
    """What the operator was answered; 0 is nothing."""

    @property
    def is_write(self) -> bool:
        """Whether it would change an object."""
        return self.verb in _VERBS.values() and not self.is_dry


Match = Callable[[Call], bool]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Fault = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Rule:
    """A fault for the calls that match, until it is lifted or has been done so many times."""

    matches: Match
    fault: Fault
    times: int | None = None
    done: int = field(init=False, default=0)
    """How many calls met it."""

    def takes(self, call: Call) -> bool:
        return (self.times is None or self.done < self.times) and self.matches(call)


def on(verbs: str, resource: str, *, name: str = "") -> Match:
    """Match by verbs, separated by spaces, and by resource; by name where one is given."""
    chosen = frozenset(verbs.split())
    return lambda call: (
        call.verb in chosen and call.resource == resource and name in {"", call.name}
    )


def refuse(
    status: int, message: str, *, reason: str = "", headers: Mapping[str, str] = _NO_HEADERS
) -> Fault:
    """Answer with a `Status`, as the API server or what stands before it would."""

    async def answer(_: web.Request, __: Handler) -> web.StreamResponse:
        body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": status,
            "reason": reason,
            "message": message,
        }
        return web.json_response(body, status=status, headers=headers)

    return answer


def slow(seconds: float) -> Fault:
    """Hold the request back, then pass it on."""

    async def wait(request: web.Request, go_on: Handler) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await go_on(request)

    return wait


def hold(until: threading.Event) -> Fault:
    """Hold the request back until the event is set, then pass it on."""

    async def wait(request: web.Request, go_on: Handler) -> web.StreamResponse:
        await asyncio.to_thread(until.wait)
        return await go_on(request)

    return wait


def lose_answer() -> Fault:
    """Do what was asked, then cut the connection: the operator cannot know that it was done."""

    async def cut(request: web.Request, go_on: Handler) -> web.StreamResponse:
        answer = await go_on(request)
        assert request.transport is not None
        request.transport.abort()
        return answer

    return cut


def garbage() -> Fault:
    """Answer 200 with a page, as a captive portal does."""

    async def page(_: web.Request, __: Handler) -> web.StreamResponse:
        return web.Response(text="<html>sign in</html>", content_type="text/html")

    return page


def end_at_once() -> Fault:
    """Answer a watch with 200 and an empty stream."""

    async def end(_: web.Request, __: Handler) -> web.StreamResponse:
        return web.Response(content_type="application/json")

    return end


@dataclass(slots=True)
class ApiProxy:
    """Stands between one operator and the API server."""

    upstream: str
    authority: Path
    kubeconfig: Path = field(default=Path())
    """For the operator: leads here."""
    url: str = ""
    date: str = ""
    """The `Date` of every answer, where the API server's clock is to be wrong."""
    calls: list[Call] = field(default_factory=list)
    _rules: list[Rule] = field(default_factory=list)
    _streams: dict[web.StreamResponse, tuple[Call, asyncio.Task[Any]]] = field(default_factory=dict)
    _lists: dict[str, tuple[bytes, Mapping[str, str]]] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _session: aiohttp.ClientSession | None = None

    @contextmanager
    def faulty(self, matches: Match, fault: Fault, times: int | None = None) -> Iterator[Rule]:
        """Do a fault while the body runs."""
        rule = Rule(matches, fault, times)
        self._rules.append(rule)
        try:
            yield rule
        finally:
            self._rules.remove(rule)

    def cut_watches(self, resource: str = "", *, error: Mapping[str, Any] | None = None) -> int:
        """End open watches, of one resource or all, with an ERROR event first; how many."""
        future = asyncio.run_coroutine_threadsafe(self._cut_watches(resource, error), self._loop)
        return future.result(timeout=30)

    def stale_list(self) -> Fault:
        """Answer each list with what was answered last, resourceVersion and all."""

        async def replay(request: web.Request, go_on: Handler) -> web.StreamResponse:
            if (old := self._lists.get(request.path_qs)) is None:
                return await go_on(request)
            return web.Response(body=old[0], headers=old[1])

        return replay

    def mark(self) -> int:
        """Return where the calls that come now begin."""
        return len(self.calls)

    def counted(self, since: int = 0) -> Counter[str]:
        """Count calls by verb and resource."""
        return Counter(f"{call.verb} {call.resource}" for call in self.calls[since:])

    async def _cut_watches(self, resource: str, error: Mapping[str, Any] | None) -> int:
        chosen = [
            (answer, task)
            for answer, (call, task) in self._streams.items()
            if resource in {"", call.resource}
        ]
        for answer, task in chosen:
            if error is not None:
                event = {"type": "ERROR", "object": {"kind": "Status", **error}}
                await answer.write(json.dumps(event).encode() + b"\n")
            task.cancel()
        return len(chosen)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        call = _read(request)
        index = len(self.calls)
        self.calls.append(call)
        rule = next((rule for rule in self._rules if rule.takes(call)), None)
        if rule is None:
            answer = await self._pass_on(request)
        else:
            rule.done += 1
            answer = await rule.fault(request, self._pass_on)
        self.calls[index] = replace(call, status=answer.status)
        if self.date:
            answer.headers["Date"] = self.date
        return answer

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        assert self._session is not None
        headers = CIMultiDict(
            (key, value) for key, value in request.headers.items() if key.lower() not in _OF_THE_HOP
        )
        call = _read(request)
        async with self._session.request(
            request.method,
            self.upstream + request.path_qs,
            data=await request.read() or None,
            headers=headers,
        ) as found:
            passed = {k: v for k, v in found.headers.items() if k.lower() not in _OF_THE_HOP}
            if call.verb == "watch" and found.status < 400:
                return await self._stream(request, call, found, passed)
            body = await found.read()
            if call.verb == "list" and found.status < 400:
                self._lists[request.path_qs] = body, passed
            return web.Response(status=found.status, body=body, headers=passed)

    async def _stream(
        self,
        request: web.Request,
        call: Call,
        found: aiohttp.ClientResponse,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        answer = web.StreamResponse(status=found.status, headers=headers)
        if self.date:
            answer.headers["Date"] = self.date
        await answer.prepare(request)
        relay = asyncio.create_task(_relay(found, answer))
        self._streams[answer] = call, relay
        try:
            await asyncio.wait([relay])
        finally:
            relay.cancel()
            del self._streams[answer]
        if relay.cancelled() and request.transport is not None:
            request.transport.close()  # in the middle: what was written goes out, no end follows
        return answer

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        trust = ssl.create_default_context(cafile=str(self.authority))
        connector = aiohttp.TCPConnector(ssl=trust, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = "http://{}:{}".format(*runner.addresses[0])
            try:
                yield
            finally:
                await runner.cleanup()


async def _relay(found: aiohttp.ClientResponse, answer: web.StreamResponse) -> None:
    async for chunk in found.content.iter_any():
        await answer.write(chunk)


@contextmanager
def api_proxy(kubeconfig: Path, folder: Path) -> Iterator[ApiProxy]:
    """Stand before the API server that this kubeconfig leads to."""
    config = yaml.safe_load(kubeconfig.read_text())
    (entry,) = config["clusters"]
    authority = Path(entry["cluster"].pop("certificate-authority"))
    proxy = ApiProxy(entry["cluster"]["server"], authority)
    up, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with proxy.serving():
            up.set()
            await stop.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: proxy._loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="API proxy", daemon=True)
    thread.start()
    assert up.wait(30)
    entry["cluster"]["server"] = proxy.url
    proxy.kubeconfig = folder / f"through-proxy-{proxy.url.rpartition(':')[2]}.yaml"
    proxy.kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield proxy
    finally:
        proxy._loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=30)


def _read(request: web.Request) -> Call:
    """Read what is asked from the path: /api/v1 or /apis/GROUP/VERSION, then where and what."""
    parts = request.path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    resource, name, *sub = [*rest, "", ""][: max(2, len(rest))]
    return Call(
        at=time.monotonic(),
        verb=_verb(request, name),
        resource="/".join([resource, *filter(None, sub)]),
        namespace=namespace,
        name=name,
        is_dry="dryRun" in request.query,
        client=request.headers.get("User-Agent", ""),
    )


def _verb(request: web.Request, name: str) -> str:
    if request.method != "GET":
        return _VERBS.get(request.method, request.method.lower())
    if request.query.get("watch") in {"true", "1"}:
        return "watch"
    return "get" if name else "list"


def cut_body() -> Fault:
    """Send the first half of the answer, then cut the connection."""

    async def half(request: web.Request, go_on: Handler) -> web.StreamResponse:
        whole = await go_on(request)
        assert isinstance(whole, web.Response)
        body = whole.body
        assert isinstance(body, bytes)
        assert request.transport is not None
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        answer.content_length = len(body)
        await answer.prepare(request)
        await answer.write(body[: len(body) // 2])
        request.transport.close()
        return answer

    return half
