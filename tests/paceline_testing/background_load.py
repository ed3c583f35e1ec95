"""Open-loop traffic in a thread of its own, for as long as a test wants it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Event, Thread

import httpx

from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import OfferedLoad, plan
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.record import ClientRecord

_LAST_ANSWER_S = 300.0
"""More than a block lasts and a request may take."""


@contextmanager
def background_load(
    url: str, workload: OfferedLoad, *, model: str, keeps_connections: bool = True
) -> Iterator[list[ClientRecord]]:
    """Send the workload block by block; on leaving, wait until the last request is answered."""
    records: list[ClientRecord] = []
    is_over = Event()

    async def send_blocks() -> None:
        kept = None if keeps_connections else 0
        unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=kept)
        async with httpx.AsyncClient(base_url=url, limits=unlimited) as client:
            for seed in count():
                if is_over.is_set():
                    return
                block = plan(workload, help_topics(), duration_s=workload.block_s, seed=seed)
                await drive_open(client, block, Asking(model), records.append)

    thread = Thread(target=lambda: asyncio.run(send_blocks()), name="load", daemon=True)
    thread.start()
    try:
        yield records
    finally:
        is_over.set()
        thread.join(_LAST_ANSWER_S)
        assert not thread.is_alive(), f"no end {_LAST_ANSWER_S:g} s after the last block began"
