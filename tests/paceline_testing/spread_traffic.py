"""Streams at a steady rate, each to one pod that a Service would choose, and asked once."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Final, Literal

import httpx

from paceline_cli.traffic.open_loop import StreamError, events
from paceline_testing.waiting import wait_until

Ending = Literal["whole", "told", "cut"]
"""All of the answer; an error that says so (a status or an event); the connection alone ended."""

_TIMEOUT_S: Final = 120.0
_NO_END: Final = "without [DONE]"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request."""

    url: str
    ending: Ending
    ttft_s: float | None
    gap_s: float
    """The longest between two tokens."""
    said: str = ""
    """The error, where it was told one."""


@dataclass(slots=True)
class SpreadTraffic:
    """Requests of one kind."""

    model: str
    urls: Callable[[], Sequence[str]]
    rate_rps: float
    max_tokens: int
    answers: list[Answer] = field(default_factory=list)
    asking: list[str] = field(default_factory=list)
    """The pods of the requests that run."""
    num_asked: int = 0

    async def send(self, is_over: Event) -> None:
        """Ask until it is over, and wait for the last answer."""
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(limits=limits, timeout=_TIMEOUT_S) as client,
            asyncio.TaskGroup() as group,
        ):
            next_at = time.monotonic()
            while not is_over.is_set():
                if urls := self.urls():
                    self.num_asked += 1
                    group.create_task(self._ask(client, urls[self.num_asked % len(urls)]))
                next_at += 1 / self.rate_rps
                await asyncio.sleep(max(0.0, next_at - time.monotonic()))

    async def _ask(self, client: httpx.AsyncClient, url: str) -> None:
        self.asking.append(url)
        began = last = time.monotonic()
        ttft: float | None = None
        gap, said = 0.0, ""
        ending: Ending = "whole"
        body = {
            "model": self.model,
            "prompt": f"Request {self.num_asked}",
            "max_tokens": self.max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async for _token in _tokens(client, url, body):
                now = time.monotonic()
                if ttft is None:
                    ttft = now - began
                else:
                    gap = max(gap, now - last)
                last = now
        except StreamError as problem:
            said = str(problem)
            ending = "cut" if said.endswith(_NO_END) else "told"
        except httpx.HTTPError as problem:
            ending, said = "cut", repr(problem)
        self.answers.append(Answer(url, ending, ttft, gap, said))
        self.asking.remove(url)


async def _tokens(
    client: httpx.AsyncClient, url: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Stream the answer's events; an error of the server's is a `StreamError`."""
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        if answer.is_error:
            await answer.aread()
            raise StreamError(f"{answer.status_code} {answer.text}")
        async for event in events(answer):
            yield event


@contextmanager
def spread_traffic(
    model: str, urls: Callable[[], Sequence[str]], *, rate_rps: float, max_tokens: int
) -> Iterator[SpreadTraffic]:
    """Ask all the while; on leaving, all have been answered."""
    traffic = SpreadTraffic(model, urls, rate_rps, max_tokens)
    is_over = Event()
    thread = Thread(target=lambda: asyncio.run(traffic.send(is_over)), name="traffic", daemon=True)
    thread.start()
    try:
        wait_until(lambda: traffic.answers, within_s=_TIMEOUT_S)
        yield traffic
    finally:
        is_over.set()
        thread.join(2 * _TIMEOUT_S)
    assert not thread.is_alive()
