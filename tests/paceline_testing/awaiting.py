"""Waiting, without blocking the loop, for what another process does."""

import asyncio
from collections.abc import Callable

_GENEROUS_S = 180.0


async def until(reached: Callable[[], object], *, within_s: float = _GENEROUS_S) -> None:
    """Return as soon as `reached()` is true; raise TimeoutError when it does not get so."""
    async with asyncio.timeout(within_s):
        while not reached():  # noqa: ASYNC110 - another process sets no event of ours
            await asyncio.sleep(0.02)
