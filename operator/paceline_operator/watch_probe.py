"""Probe whether the watch still brings news: kopf tells nobody when its stream is lost.

A stream without news and one that cannot connect look the same from within. So the operator lists
the InferenceServices by its own client, versions alone, and compares them with what the watch has
brought: the list fails where the API server is gone, and a version that never arrives shows that
the stream does not run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline_operator.errors import ApiError
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.observe import Watched

PERIOD_S: Final = 15.0
SILENT_AFTER_S: Final = 60.0
"""Four lists have failed, or the first of them has hung for its whole timeout."""
BEHIND_AFTER_S: Final = 120.0
"""A start lists everything once; a stream that breaks is opened anew within seconds."""


@dataclass(frozen=True, slots=True)
class _Awaited:
    """The API server has another version than the watch has brought."""

    known: int
    """What the watch had brought by then: anything newer shows that the stream runs."""
    since: float


@dataclass(slots=True)
class WatchProbe:
    """Every replica probes its own watch, whether or not it leads."""

    cluster: KubernetesApi
    namespaces: Sequence[str]
    """Empty watches all."""
    watched: Watched
    clock: Callable[[], float]
    _answered_at: float = field(init=False)
    _error: str = field(init=False, default="")
    _awaited: dict[str, _Awaited] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Give the first list as much time as every other."""
        self._answered_at = self.clock()

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            await self.try_once()
            await asyncio.sleep(PERIOD_S)

    async def try_once(self) -> None:
        """List once, and compare the list with what the watch has brought."""
        try:
            listed: dict[str, int] = {}
            for namespace in self.namespaces or ("",):
                listed |= await self.cluster.versions("InferenceService", namespace)
        except ApiError as problem:
            self._error = str(problem)
            return
        self._error = ""
        self._answered_at = self.clock()
        self._awaited = self._still_awaited(listed)

    def silent_s(self) -> float:
        """Return for how long the API server has not answered."""
        return self.clock() - self._answered_at

    def problem(self) -> str:
        """Say what the watch misses; empty where it hears."""
        silent_s = self.silent_s()
        if silent_s > SILENT_AFTER_S:
            why = f": {self._error}" if self._error else ""
            return f"the API server has not answered for {silent_s:.0f} s{why}"
        late = min(self._awaited.items(), key=lambda item: item[1].since, default=None)
        if late is None or (behind_s := self.clock() - late[1].since) <= BEHIND_AFTER_S:
            return ""
        return f"the watch has missed what happened to {late[0]} {behind_s:.0f} s ago"

    def _still_awaited(self, listed: Mapping[str, int]) -> dict[str, _Awaited]:
        awaited: dict[str, _Awaited] = {}
        for key in {*listed, *self.watched.keys()}:
            known = self._known(key)
            if _has_come(known, listed.get(key, _GONE)):
                continue
            before = self._awaited.get(key)
            # A busy service is always a moment ahead: what counts is that nothing comes at all.
            is_still = before is not None and before.known == known
            awaited[key] = before if before and is_still else _Awaited(known, self.clock())
        return awaited

    def _known(self, key: str) -> int:
        raw = self.watched.service(key)
        return _GONE if raw is None else int(raw["metadata"]["resourceVersion"])


_GONE: Final = -1


def _has_come(known: int, wanted: int) -> bool:
    """Whether the watch has brought this version; a deletion has come when nothing is known."""
    return known == _GONE if wanted == _GONE else known >= wanted
