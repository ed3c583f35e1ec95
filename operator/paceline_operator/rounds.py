"""The tuner's rounds: each service on its own interval, and at once when its target changes."""

import asyncio
import logging
import math
import zlib
from dataclasses import dataclass, field
from typing import Protocol

from paceline_operator.errors import NotLeadingError
from paceline_operator.fence import Fence
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_target import ServiceTarget

# The interval of a service none of whose pods can be asked.
_IDLE_S = 300.0
# About twenty decisions; if polls waited longer for the loop, they would time out.
_BEHIND_S = 0.05
# Others may keep the loop busy for long, as kopf does at a start: no round waits for all of that.
_MOST_TURNS = 10

_log = logging.getLogger(__name__)


def next_round(uid: str, now: float, interval_s: float) -> float:
    """Return when the next round begins: at the service's phase, half an interval away or more.

    Rounds that began together, as at the operator's start, do not stay together.
    """
    phase_s = zlib.crc32(uid.encode()) / 2**32 * interval_s
    earliest = now + interval_s / 2
    return phase_s + math.ceil((earliest - phase_s) / interval_s) * interval_s


class ServiceTuner(Protocol):
    """Tunes the pods of one service, round by round."""

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        """Read the pods, decide, change their limits, conclude."""
        ...

    def forget(self, key: str) -> None:
        """Drop a service that is gone."""
        ...

    def annotations(self, since_ms: float) -> list[Annotation]:
        """Mark what was decided since then, in Unix milliseconds, oldest first."""
        ...


class Listener(Protocol):
    """Hears how each round ended."""

    def concluded(self, uid: str, report: ServiceReport) -> None:
        """Take what a round of the service of this uid concluded."""
        ...

    def failed(self, key: str) -> None:
        """Note that a round of this service failed."""
        ...


@dataclass(slots=True)
class _Followed:
    """The rounds of one service."""

    uid: str
    target: ServiceTarget
    task: asyncio.Task[None] = field(init=False)
    news: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set where a round should not wait for the interval's end."""


@dataclass(slots=True)
class Rounds:
    """Runs one task for each service, in this process."""

    tuner: ServiceTuner
    listener: Listener
    fence: Fence
    _followed: dict[str, _Followed] = field(init=False, default_factory=dict)
    _door: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def grant(self, shard: int, until: float) -> None:  # noqa: ARG002 - there is one
        """Let rounds begin until then, in monotonic seconds."""
        self.fence.grant(until)

    def follow(self, uid: str, target: ServiceTarget) -> None:
        """Tune this from now on; at once if it differs from what was tuned."""
        followed = self._followed.get(target.key)
        if followed is not None and followed.uid != uid:  # made again under the same name
            self.forget(target.key)
            followed = None
        if followed is None or followed.task.done():
            self._followed[target.key] = followed = _Followed(uid, target)
            work = self._rounds(followed)
            followed.task = asyncio.create_task(work, name=f"tune {target.key}")
        elif target != followed.target:
            followed.target = target
            followed.news.set()

    def is_tuning(self, key: str) -> bool:
        """Tell whether this service has its rounds."""
        followed = self._followed.get(key)
        return followed is not None and not followed.task.done()

    def forget(self, key: str) -> None:
        """End the rounds of a service that is gone."""
        if followed := self._followed.pop(key, None):
            followed.task.cancel()
        self.tuner.forget(key)

    async def annotations(self, since_ms: float) -> list[Annotation]:
        """Mark what was decided since then, in Unix milliseconds, oldest first."""
        return self.tuner.annotations(since_ms)

    async def run(self) -> None:
        """Wait until cancelled; then end all rounds."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End all rounds."""
        tasks = [followed.task for followed in self._followed.values()]
        for key in [*self._followed]:
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _rounds(self, followed: _Followed) -> None:
        """Tune this very service until it is forgotten."""
        while True:
            await self.fence.lead()
            await self._turn()
            followed.news.clear()
            target = followed.target
            interval_s = target.spec.interval_s if target.pods else _IDLE_S  # pods are news
            next_at = next_round(followed.uid, asyncio.get_running_loop().time(), interval_s)
            await self._round(followed.uid, target)
            timer = asyncio.get_running_loop().call_at(next_at, followed.news.set)
            try:
                await followed.news.wait()
            finally:
                timer.cancel()

    async def _turn(self) -> None:
        """Let one round at a time continue, and none while the event loop is behind.

        A process that has too much to do is late with its polls, and does not lose them. Pods that
        hang keep no loop busy, so nobody waits for them.
        """
        clock = asyncio.get_running_loop().time
        async with self._door:
            for _ in range(_MOST_TURNS):
                began = clock()
                await asyncio.sleep(0)
                if clock() - began < _BEHIND_S:
                    return

    async def _round(self, uid: str, target: ServiceTarget) -> None:
        try:
            report = await self.tuner.tick(target)
        except NotLeadingError:
            _log.debug("a round of %s ended with the leadership", target.key)
        except Exception:  # noqa: BLE001 - one failure must not end a service's rounds
            self.listener.failed(target.key)
            _log.exception("a round of %s failed", target.key)
        else:
            self.listener.concluded(uid, report)
