"""News: names the services that changed, each once, a moment after the first change."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class News:
    """Collects changes for `pause_s`: creating a service's children is a burst of them."""

    pause_s: float
    _keys: dict[str, None] = field(init=False, default_factory=dict)
    _is_some: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def note(self, key: str) -> None:
        """Note that this service changed."""
        self._keys[key] = None
        self._is_some.set()

    async def run(self, tell: Callable[[str], None]) -> None:
        """Call `tell` for each service that changed, for ever; other tasks run in between."""
        while True:
            await self._is_some.wait()
            await asyncio.sleep(self.pause_s)
            keys, self._keys = self._keys, {}
            self._is_some.clear()
            for key in keys:
                tell(key)
                await asyncio.sleep(0)
