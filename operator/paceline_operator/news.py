"""News: of which services something was heard, told a moment later and once for each."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class News:
    """Bursts, as when a service's children come to be, are one piece of news."""

    pause_s: float
    _keys: dict[str, None] = field(init=False, default_factory=dict)
    _is_some: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def note(self, key: str) -> None:
        """Have it told of this service."""
        self._keys[key] = None
        self._is_some.set()

    async def run(self, tell: Callable[[str], None]) -> None:
        """Tell, for ever; others run between one service and the next."""
        while True:
            await self._is_some.wait()
            await asyncio.sleep(self.pause_s)
            keys, self._keys = self._keys, {}
            self._is_some.clear()
            for key in keys:
                tell(key)
                await asyncio.sleep(0)
