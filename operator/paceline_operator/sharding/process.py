"""`python -m paceline_operator.sharding.process FD NUMBER LEVEL`: a process that tunes its pods.

The operator's process starts it, over whose socket FD it hears what to tune. It has no rights on
the cluster, and ends when the socket does.
"""

import asyncio
import logging
import resource
import signal as signals
import socket
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from paceline_operator import garbage
from paceline_operator.fence import Fence
from paceline_operator.pod_client import AiohttpPodClient
from paceline_operator.rounds import Rounds
from paceline_operator.sharding.channel import Channel, to_operator
from paceline_operator.sharding.messages import (
    Alive,
    Concluded,
    Failed,
    Follow,
    Forget,
    FromShard,
    Grant,
    Learned,
    Marks,
    MarksWanted,
    ToShard,
    Unchanged,
    WarmStartAnswer,
)
from paceline_operator.sharding.warm_starts import DistantStore
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.warm_start_json import decode

_BEAT_S: Final = 1.0


@dataclass(slots=True)
class _Tidings:
    """Sends each round's result to the operator; an unchanged report only as `Unchanged`."""

    channel: Channel[FromShard, ToShard]
    _told: dict[str, ServiceReport] = field(init=False, default_factory=dict)

    def concluded(self, uid: str, report: ServiceReport) -> None:
        """Tell what a round concluded."""
        slot, told = ("report", report.key), self._told.get(report.key)
        is_said = told is not None and replace(report, at=told.at) == told
        if is_said and not self.channel.has_waiting(slot):
            self.channel.put(slot, Unchanged(uid, report.key, report.at))
            return
        self._told[report.key] = report
        self.channel.put(slot, Concluded(uid, report))

    def failed(self, key: str) -> None:
        """Tell of a round that failed."""
        self.channel.put(("failed", key), Failed(key))

    def forget(self, key: str) -> None:
        """Drop a service that is gone."""
        self._told.pop(key, None)


@dataclass(slots=True)
class _Shard:
    """The parts of this process, and what each message means to them."""

    channel: Channel[FromShard, ToShard]
    loop: TuningLoop
    store: DistantStore
    rounds: Rounds
    tidings: _Tidings

    async def listen(self) -> None:
        """Do what is asked until the operator's process ends."""
        async for message in self.channel.messages():
            await self._do(message)

    async def _do(self, message: ToShard) -> None:
        match message:
            case Grant(until):
                self.rounds.grant(0, until)
            case Follow(uid, target):
                self.rounds.follow(uid, target)
            case Forget(key):
                self.rounds.forget(key)
                self.tidings.forget(key)
            case MarksWanted(number, since_ms):
                marks = await self.rounds.annotations(since_ms)
                self.channel.put(message, Marks(number, marks))
            case WarmStartAnswer():
                self.store.hear(message)
            case Learned(text):
                self.loop.learn(decode(text)[0])

    async def beat(self) -> None:
        """Send a heartbeat each second, for ever."""
        while True:
            used = resource.getrusage(resource.RUSAGE_SELF)
            alive = Alive(used.ru_utime + used.ru_stime, _rss_bytes())
            self.channel.put("alive", alive)
            await asyncio.sleep(_BEAT_S)


async def run(own: socket.socket) -> None:
    """Tune what the operator's process names until it hangs up."""
    channel, fence = await to_operator(own), Fence(time.monotonic)
    async with AiohttpPodClient(check_leadership=fence.check) as pods:
        store, tidings = DistantStore(channel), _Tidings(channel)
        loop = TuningLoop(pods, time.time, store)
        shard = _Shard(channel, loop, store, Rounds(loop, tidings, fence), tidings)
        works = (shard.listen(), shard.beat(), channel.send(), shard.rounds.run())
        tasks = [asyncio.create_task(work) for work in works]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        channel.close()
        for task in done:
            if not isinstance(task.exception(), ConnectionError):  # nobody is left to be told
                task.result()


def _rss_bytes() -> int:
    """Return the memory that it has now; where the system does not say, the most that it had."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run until the operator's process ends, whatever ends it."""
    descriptor, number, level = sys.argv[1:]
    # Ctrl-C in a terminal reaches all its processes: the operator's gives the Lease back first.
    signals.signal(signals.SIGINT, signals.SIG_IGN)
    logging.basicConfig(
        level=level.upper(),
        format=f"%(asctime)s %(levelname)-7s %(name)s: shard {number}: %(message)s",
    )
    garbage.look_seldom()
    asyncio.run(run(socket.socket(fileno=int(descriptor))))


if __name__ == "__main__":
    main()
