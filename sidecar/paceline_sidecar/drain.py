"""Leave in order: refuse new requests, finish those that run, then go."""

import asyncio
import logging

from paceline_sidecar.errors import Unavailable
from paceline_sidecar.service import Service

_log = logging.getLogger(__name__)


async def drain(service: Service, *, drain_s: float) -> None:
    """Return when nothing runs any more; what outlasts `drain_s` fails with 503."""
    service.draining = True
    _log.info("draining: %d requests run", len(service.exchanges))
    if not await _idle(service, within_s=drain_s):
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
