"""Shut down in order: keep accepting for a while, refuse new requests, finish the rest, exit."""

import asyncio
import logging

from paceline_sidecar.errors import Unavailable
from paceline_sidecar.service import Service

_log = logging.getLogger(__name__)


async def drain(service: Service, *, lame_duck_s: float, drain_s: float) -> None:
    """Return when nothing runs any more; what outlasts `drain_s` fails with 503.

    For the first `lame_duck_s` of them it is not ready, and yet takes requests, each on a
    connection that ends with the answer: proxies hear only after a while that a pod leaves, and
    clients do not hear of it at all as long as they keep a connection open.
    """
    lame_duck_s = min(lame_duck_s, drain_s)
    service.leaving = True
    _log.info("leaving: new requests are refused in %g s", lame_duck_s)
    await asyncio.sleep(lame_duck_s)
    service.refusing = True
    _log.info("draining: %d requests run", len(service.exchanges))
    if not await _idle(service, within_s=drain_s - lame_duck_s):
        _log.warning("drain time is over: %d requests are ended", len(service.exchanges))
        over = Unavailable("draining", "The server went away before the answer was complete.")
        for exchange in list(service.exchanges):
            exchange.fail(over)
        await _idle(service, within_s=1.0)


async def _idle(service: Service, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await service.idle.wait()
    except TimeoutError:
        return service.idle.is_set()
    return True
