"""A watch that is ended at once waits before the next; all others are opened as they come."""

from dataclasses import replace

import aiohttp
import kopf
from aiohttp import web
from aiohttp.test_utils import TestServer

from paceline_operator.metrics import Metrics
from paceline_operator.watch_pace import WatchPace
from paceline_testing.clock import ManualClock

_PODS = "/api/v1/pods"
_WATCH = {"watch": "true", "allowWatchBookmarks": "true"}


class Paced:
    """A server that ends each answer at once, and a session that is paced."""

    def __init__(self) -> None:
        self.clock, self.metrics = ManualClock(), Metrics()
        self.pauses: list[float] = []
        self.status = 200
        self._pace = WatchPace(self.metrics, self.clock, self._sleep)

    async def ask(self, *asked: tuple[str, dict[str, str]], every_s: float = 0.0) -> None:
        """Ask one after the other."""
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        async with (
            TestServer(app) as server,
            aiohttp.ClientSession(trace_configs=[self._pace.trace()]) as session,
        ):
            for path, query in asked:
                async with session.get(server.make_url(path), params=query) as answer:
                    assert await answer.read() == b""
                self.clock.advance(every_s)

    def counted(self, name: str) -> float | None:
        labels = {"resource": "pods"}
        return self.metrics.registry.get_sample_value(f"paceline_operator_{name}_total", labels)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)

    async def _answer(self, _: web.Request) -> web.Response:
        return web.Response(status=self.status)


async def test_a_watch_that_is_ended_at_once_backs_off() -> None:
    """Ever longer, up to half a minute, and it is counted."""
    paced = Paced()

    await paced.ask(*[(_PODS, _WATCH)] * 10)

    assert paced.pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0]
    assert (paced.counted("watch_starts"), paced.counted("watch_pauses")) == (10.0, 9.0)


async def test_a_watch_that_has_lived_is_opened_again_without_a_pause() -> None:
    """As is one whose last request failed: for that kopf has pauses of its own."""
    lived = Paced()
    await lived.ask(*[(_PODS, _WATCH)] * 3, every_s=300.0)
    failed = Paced()
    failed.status = 500
    await failed.ask(*[(_PODS, _WATCH)] * 3)

    assert (lived.pauses, failed.pauses) == ([], [])
    assert (lived.counted("watch_starts"), failed.counted("watch_starts")) == (3.0, None)


async def test_each_watch_has_a_pace_of_its_own_and_a_list_has_none() -> None:
    """Two kinds, or two namespaces, are two watches."""
    paced = Paced()

    await paced.ask((_PODS, _WATCH), (_PODS, {}), (_PODS, {}), ("/api/v1/services", _WATCH))

    assert paced.pauses == []


async def test_the_same_credentials_are_no_other_session() -> None:
    """Kopf would try what the API server has refused for ever."""
    pace = WatchPace(Metrics(), ManualClock())
    account = kopf.ConnectionInfo(server="https://10.0.0.1", token="one")
    sessions = [pace.session(account), pace.session(replace(account, token="two"))]
    again = pace.session(account)

    assert again == sessions[0]
    assert again != sessions[1]
    assert again.aiohttp_session.headers["Authorization"] == "Bearer one"
    for session in (*sessions, again):
        await session.aiohttp_session.close()
