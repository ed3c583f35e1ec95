"""Probe whether the watch still brings news: kopf tells nobody when its stream is lost.

A stream without news and one that cannot connect look the same from within, and a stream that
begins anew tells of what is there, not of what has vanished meanwhile. So the operator lists the
InferenceServices by its own client, versions alone, and more seldom their children and pods, and
compares them with what the watch has brought: the list fails where the API server is gone, and a
version or an end that never arrives shows that what the watch knows cannot be trusted.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from paceline_api.labels import OWNED, SERVICE_LABEL, Manifest
from paceline_operator.errors import ApiError
from paceline_operator.kubernetes_api import KubernetesApi
from paceline_operator.observe import Watched

PERIOD_S: Final = 15.0
OWNED_PERIOD_S: Final = 60.0
"""Of children and pods there are many more."""
_OWNED_PER_S: Final = 50.0
"""A list of thousands is read more seldom: nearly all that a quiet operator does is to read it."""
SILENT_AFTER_S: Final = 60.0
"""Four lists have failed, or the first of them has hung for its whole timeout."""
BEHIND_AFTER_S: Final = 120.0
"""A start lists everything once; a stream that breaks is opened anew within seconds."""


_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
"""Between two looks at a start: a thousand services are told of in seconds."""

_INDEXED: Final = f"{OWNED},{SERVICE_LABEL}"
"""Selects what the watch keeps of what it hears."""
OWNED_KINDS: Final = (
    "ConfigMap",
    "Deployment",
    "NetworkPolicy",
    "Pod",
    "PodDisruptionBudget",
    "Service",
    "ServiceAccount",
)


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
    period_s: float = PERIOD_S
    """The other times stand in the same proportion to it as by default."""
    _answered_at: float = field(init=False)
    _error: str = field(init=False, default="")
    _awaited: dict[str, _Awaited] = field(init=False, default_factory=dict)
    _awaited_owned: dict[str, _Awaited] = field(init=False, default_factory=dict)
    _owned_listed_at: float = field(init=False, default=-math.inf)
    _num_owned: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        """Give the first list as much time as every other."""
        self._answered_at = self.clock()

    async def run(self) -> None:
        """Probe for ever."""
        while True:
            await self.try_once()
            await asyncio.sleep(self.period_s)

    async def until_heard(self) -> None:
        """Return once the watch has told of all that was there at first, in whatever version.

        Where it never does, `missed` says so in its time.
        """
        unheard, listed_at, pause_s = await self._names(), self.clock(), _FIRST_PAUSE_S
        while unheard := unheard - {*self._known_services(), *self._known_owned()}:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if self.clock() - listed_at >= self.period_s:
                unheard &= await self._names()  # nobody tells of what was gone before it was told
                listed_at = self.clock()

    async def try_once(self) -> None:
        """List once, and compare the list with what the watch has brought."""
        try:
            self._awaited = await self._compare_services()
            if self.clock() - self._owned_listed_at >= self._owned_period_s():
                self._awaited_owned = await self._compare_owned()
                self._owned_listed_at = self.clock()
        except ApiError as problem:
            self._error = str(problem)
            return
        self._error = ""
        self._answered_at = self.clock()

    def silent_s(self) -> float:
        """Return for how long the API server has not answered."""
        return self.clock() - self._answered_at

    def problem(self) -> str:
        """Say what the watch misses; empty where it hears."""
        silent_s = self.silent_s()
        if silent_s > self._scaled(SILENT_AFTER_S):
            why = f": {self._error}" if self._error else ""
            return f"the API server has not answered for {silent_s:.0f} s{why}"
        return self.missed()

    def missed(self) -> str:
        """Say what the watch has missed although the API server answers; empty if nothing."""
        awaited = {**self._awaited, **self._awaited_owned}
        late = min(awaited.items(), key=lambda item: item[1].since, default=None)
        longest_s = self._scaled(BEHIND_AFTER_S)
        if late is None or (behind_s := self.clock() - late[1].since) <= longest_s:
            return ""
        return f"the watch has missed what happened to {late[0]} {behind_s:.0f} s ago"

    def _scaled(self, usual_s: float) -> float:
        return usual_s * self.period_s / PERIOD_S

    def _owned_period_s(self) -> float:
        return max(self._scaled(OWNED_PERIOD_S), self._num_owned / _OWNED_PER_S)

    async def _names(self) -> set[str]:
        """List all names, however long the API server takes to answer."""
        while True:
            try:
                return {*await self._list_services(), *await self._list_owned()}
            except ApiError as problem:
                self._error = str(problem)
                await asyncio.sleep(_LONGEST_PAUSE_S)

    async def _compare_services(self) -> dict[str, _Awaited]:
        listed = await self._list_services()
        return self._still_awaited(listed, self._known_services(), self._awaited)

    async def _compare_owned(self) -> dict[str, _Awaited]:
        listed = await self._list_owned()
        self._num_owned = len(listed)
        return self._still_awaited(listed, self._known_owned(), self._awaited_owned)

    async def _list_services(self) -> dict[str, int]:
        listed: dict[str, int] = {}
        for namespace in self.namespaces or ("",):
            listed |= await self.cluster.versions("InferenceService", namespace)
        return listed

    async def _list_owned(self) -> dict[str, int]:
        listed: dict[str, int] = {}
        for kind in OWNED_KINDS:
            for namespace in self.namespaces or ("",):
                found = await self.cluster.versions(kind, namespace, labels=_INDEXED)
                listed |= {f"{kind} {name}": version for name, version in found.items()}
        return listed

    def _known_services(self) -> dict[str, int]:
        found = {key: self.watched.service(key) for key in {*self.watched.keys()}}
        return {key: _version(raw) for key, raw in found.items() if raw is not None}

    def _known_owned(self) -> dict[str, int]:
        return {
            f"{kind} {raw['metadata']['namespace']}/{raw['metadata']['name']}": _version(raw)
            for kind, raw in self.watched.owned()
        }

    def _still_awaited(
        self, listed: Mapping[str, int], known: Mapping[str, int], before: Mapping[str, _Awaited]
    ) -> dict[str, _Awaited]:
        awaited: dict[str, _Awaited] = {}
        for key in {*listed, *known}:
            has = known.get(key, _GONE)
            if _has_come(has, listed.get(key, _GONE)):
                continue
            # A busy object is always a moment ahead: what counts is that nothing comes at all.
            old = before.get(key)
            awaited[key] = old if old and old.known == has else _Awaited(has, self.clock())
        return awaited


def _version(raw: Manifest) -> int:
    return int(raw["metadata"]["resourceVersion"])


_GONE: Final = -1


def _has_come(known: int, wanted: int) -> bool:
    """Whether the watch has brought this version; a deletion has come when nothing is known."""
    return known == _GONE if wanted == _GONE else known >= wanted
