"""Fence: leadership as it was last granted, checked before each change of limits."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline_operator.errors import NotLeadingError


@dataclass(slots=True)
class Fence:
    """Open until a moment of the monotonic clock, which all processes of a machine share.

    So a process that was stopped for a while, or whose messages are late, finds it closed.
    """

    clock: Callable[[], float]
    _until: float = field(init=False, default=-math.inf)
    _granted: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def grant(self, until: float) -> None:
        """Open it until then; a moment that has passed closes it."""
        self._until = until
        self._granted.set()

    def check(self) -> None:
        """Stop a change that another leader might already be making."""
        if not self._is_open:
            raise NotLeadingError("the leadership that was granted has run out")

    async def lead(self) -> None:
        """Return once it is open."""
        while not self._is_open:
            self._granted.clear()
            await self._granted.wait()

    @property
    def _is_open(self) -> bool:
        return self.clock() < self._until
