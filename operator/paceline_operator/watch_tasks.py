"""Kopf's watches as tasks: one that has ended is told, because kopf begins no other.

An error that the API server sends in the stream, unless it is that of an old version, ends the
watch of one kind for good: the operator would go on without any news of that kind.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

PERIOD_S: Final = 1.0
_NAMED: Final = "watcher for "
"""How kopf names the task of each kind; a test with a real API server holds this true."""


class WatchEndedError(Exception):
    """Only a new process watches again."""


@dataclass(slots=True)
class WatchTasks:
    """Looks at the tasks of the running loop."""

    _known: set[str] = field(init=False, default_factory=set)
    _missing: set[str] = field(init=False, default_factory=set)

    async def run(self) -> None:
        """Look for ever; raises WatchEndedError once a watch has ended."""
        while True:
            if ended := self.ended():
                raise WatchEndedError(ended)
            await asyncio.sleep(PERIOD_S)

    def ended(self) -> str:
        """Name a watch that was there before and is missing for the second time in succession.

        When a definition changes, kopf ends its watch and begins it anew.
        """
        names = {task.get_name() for task in asyncio.all_tasks()}
        self._known |= {name for name in names if name.startswith(_NAMED)}
        missing = self._known - names
        lasting = missing & self._missing
        self._missing = missing
        return min(lasting, default="")
