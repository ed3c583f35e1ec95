"""Whether the client kept up: one that lags measures itself, not the server."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from paceline_cli.traffic.record import ClientRecord, percentile

_LOOK_S: Final = 0.02
_ALWAYS_FINE_MS: Final = 10.0
"""The scheduler of a busy machine alone takes some milliseconds."""
_SHARE_OF_A_GAP: Final = 0.25
"""A client that is later than this part of a usual gap has bent the gaps."""


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How late the client itself was, milliseconds."""

    loop_lag_p99_ms: float
    """How much later than asked the event loop woke."""
    loop_lag_max_ms: float
    late_send_p99_ms: float
    """From planned to sent."""
    allowed_ms: float
    """Beyond it the client counts as saturated."""

    @property
    def is_saturated(self) -> bool:
        """Whether latencies tell of the client too."""
        return max(self.loop_lag_p99_ms, self.late_send_p99_ms) > self.allowed_ms

    @property
    def sentence(self) -> str:
        """What to say of it."""
        late = (
            f"event loop p99 {self.loop_lag_p99_ms:.1f} ms late, sends p99"
            f" {self.late_send_p99_ms:.1f} ms late, {self.allowed_ms:.0f} ms allowed"
        )
        if self.is_saturated:
            return f"The client was saturated: {late}. Latencies are partly its own."
        return f"The client kept up: {late}."


class LoopLag:
    """How late an event loop woke each time."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        """When, and by how many milliseconds."""

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            self.seen.append((now, (now - before - _LOOK_S) * 1e3))


@asynccontextmanager
async def watched_loop() -> AsyncIterator[LoopLag]:
    """Watch the event loop inside the block."""
    lag = LoopLag()
    task = asyncio.create_task(lag.watch())
    try:
        yield lag
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def judge(
    lag: Sequence[tuple[float, float]], records: Sequence[ClientRecord], since: float
) -> ClientHealth:
    """Judge the client from `since` on, monotonic seconds."""
    lags = [max(ms, 0.0) for at, ms in lag if at >= since]
    late = [(one.sent_at - one.planned_at) * 1e3 for one in records if one.planned_at >= since]
    gaps = [ms for one in records if one.planned_at >= since for ms in one.itls_ms]
    usual_ms = percentile(gaps, 0.5) or 0.0
    return ClientHealth(
        loop_lag_p99_ms=percentile(lags, 0.99) or 0.0,
        loop_lag_max_ms=max(lags, default=0.0),
        late_send_p99_ms=percentile(late, 0.99) or 0.0,
        allowed_ms=max(_ALWAYS_FINE_MS, _SHARE_OF_A_GAP * usual_ms),
    )
