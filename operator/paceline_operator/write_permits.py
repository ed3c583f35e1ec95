"""Permission to write: a turn at a bounded pace, and the Lease still held when it comes.

Unbounded, a thousand services that change at once are a storm that every other client of the API
server feels. What a spec asks for goes before what is only told of it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_BURST_S: Final = 0.5
"""How many seconds of the pace may be spent at once after a pause."""


@dataclass(slots=True)
class Allowance:
    """A token bucket. Pure: time is given."""

    per_second: float
    _left: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        """Begin full."""
        self._left = self._most

    def take(self, now: float) -> float:
        """Take one and return 0, or take none and return how many seconds are missing."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self.per_second)
        self._at = max(self._at, now)
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self.per_second

    @property
    def _most(self) -> float:
        return max(1.0, self.per_second * _BURST_S)


@dataclass(slots=True)
class WritePermits:
    """Every write of children, status and events asks here first, just before its request."""

    check_leadership: Callable[[], None]
    """Raises where another replica may be writing."""
    per_second: float
    _allowance: Allowance = field(init=False)
    _changes: deque[asyncio.Future[None]] = field(init=False, default_factory=deque)
    _reports: deque[asyncio.Future[None]] = field(init=False, default_factory=deque)
    _timer: asyncio.TimerHandle | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begin with a full allowance."""
        self._allowance = Allowance(self.per_second)

    async def for_change(self) -> None:
        """Wait for the turn of a write that a spec asks for; raises NotLeadingError."""
        await self._turn(self._changes)

    async def for_report(self) -> None:
        """Wait for the turn of a write that only tells; every change goes first."""
        await self._turn(self._reports)

    async def _turn(self, waiting: "deque[asyncio.Future[None]]") -> None:
        mine = asyncio.get_running_loop().create_future()
        waiting.append(mine)
        self._serve()
        await mine
        self.check_leadership()  # it may have ended while this waited

    def _serve(self) -> None:
        """Give turns while the allowance lasts; come back when it has grown."""
        if self._timer is not None:
            return  # nothing is left until then
        loop = asyncio.get_running_loop()
        while waiting := self._next():
            missing_s = self._allowance.take(loop.time())
            if missing_s > 0:
                self._timer = loop.call_later(missing_s, self._serve_again)
                return
            waiting.popleft().set_result(None)

    def _serve_again(self) -> None:
        self._timer = None
        self._serve()

    def _next(self) -> "deque[asyncio.Future[None]] | None":
        """Return the queue to serve next; waiters that gave up are dropped."""
        for waiting in (self._changes, self._reports):
            while waiting and waiting[0].done():
                waiting.popleft()
            if waiting:
                return waiting
        return None
