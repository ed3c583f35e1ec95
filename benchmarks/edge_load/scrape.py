"""How long the event loop stands still for a scrape: written in a thread, and on the loop itself.

`python -m edge_load.scrape` prints one line of JSON; medians over scrapes that alternate.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop
from starlette.concurrency import run_in_threadpool

from paceline_sidecar.metrics.collector import Exposition
from paceline_sidecar.metrics.snapshot import snapshot
from paceline_sidecar.service import Service
from paceline_sidecar.zmq_engine import ZmqEngine

_SCRAPES = 100
_TICK_S = 0.0002


class Ticker:
    """Notes the longest time between two turns of the loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last_at = time.monotonic()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self._last_at)
            self._last_at = now


async def measure() -> dict[str, float]:
    """Scrape in both ways, and in neither, by turns."""
    service = Service(ZmqEngine(Path("nobody.sock")), run_dir=Path())
    exposition = Exposition(vllm=True, by_key=False)
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())

    async def in_a_thread() -> None:
        await run_in_threadpool(exposition.write, snapshot(service), "")

    async def on_the_loop() -> None:
        exposition.write(snapshot(service), "", breath_s=0.0)

    async def nothing() -> None:
        await asyncio.sleep(0.01)

    ways: dict[str, Callable[[], Awaitable[None]]] = {
        "thread": in_a_thread,
        "loop": on_the_loop,
        "nothing": nothing,
    }
    stalls: dict[str, list[float]] = {name: [] for name in ways}
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_SCRAPES):
        for name, scrape in ways.items():
            await asyncio.sleep(0.005)
            ticker.longest_s, began = 0.0, time.monotonic()
            await scrape()
            took[name].append((time.monotonic() - began) * 1e3)
            await asyncio.sleep(0.002)
            stalls[name].append(ticker.longest_s * 1e3)
    ticking.cancel()
    return {
        **{f"{name}_ms": statistics.median(times) for name, times in took.items()},
        **{f"{name}_stall_ms": statistics.median(times) for name, times in stalls.items()},
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure())))
