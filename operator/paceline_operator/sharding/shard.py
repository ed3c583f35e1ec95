"""Shard: one process that tunes, kept running from the operator's process."""

import asyncio
import itertools
import logging
import math
import socket
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from paceline_operator.metrics import Metrics
from paceline_operator.rounds import Listener
from paceline_operator.sharding.channel import Channel, to_shard
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
    WarmStartFound,
    WarmStartWanted,
)
from paceline_operator.sharding.warm_starts import SharedWarmStart
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_report import ServiceReport

HANG_S: Final = 20.0
"""A process that sends nothing for this long is killed; leases then last 35 s or more."""
_START_S: Final = 60.0
"""How long a new process may take to send its first message."""
_END_S: Final = 1.0
_TICK_S: Final = 1.0
_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 30.0
_STEADY_S: Final = 60.0
_MARKS_WITHIN_S: Final = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Program:
    """How a process is started, and when it counts as hung."""

    log_level: str = "info"
    hang_s: float = HANG_S

    def command(self, descriptor: int, number: int) -> Sequence[str]:
        """Return the command line of the process, which gets this end of a socket."""
        module = "paceline_operator.sharding.process"
        return sys.executable, "-m", module, str(descriptor), str(number), self.log_level


@dataclass(slots=True)
class Shard:
    """Starts the process again when it ends or hangs, and tells it anew what it has to tune.

    There is never a second one before the first is dead.
    """

    number: int
    listener: Listener
    warm_start: SharedWarmStart
    learned: Callable[["Shard", str], None]
    """Called with a warm start that this process had stored."""
    metrics: Metrics
    program: Program
    is_up: bool = field(init=False, default=False)
    """Whether the process has sent its first message."""
    pid: int | None = field(init=False, default=None)
    _targets: dict[str, Follow] = field(init=False, default_factory=dict)
    _reports: dict[str, ServiceReport] = field(init=False, default_factory=dict)
    """The last full report of each service."""
    _until: float = field(init=False, default=-math.inf)
    _is_wanted: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _channel: Channel[ToShard, FromShard] | None = field(init=False, default=None)
    _num_heard: int = field(init=False, default=0)
    _cpu_s: float = field(init=False, default=0.0)
    _numbers: Iterator[int] = field(init=False, default_factory=itertools.count)
    _asked: dict[int, asyncio.Future[list[Annotation]]] = field(init=False, default_factory=dict)
    _answers: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    def grant(self, until: float) -> None:
        """Let limits be changed until then; the first grant starts the process."""
        self._until, is_granted = until, until > -math.inf
        if is_granted:
            self._is_wanted.set()
        # A term begins with the targets that were put before; its end waits for nothing.
        self._put("grant", Grant(until), is_last=is_granted)

    def follow(self, wanted: Follow) -> None:
        """Have this tuned from now on."""
        key = wanted.target.key
        self._targets[key] = wanted
        self._put(("service", key), wanted)

    def forget(self, key: str) -> None:
        """Have a service forgotten that is gone."""
        self._targets.pop(key, None)
        self._reports.pop(key, None)
        self._put(("service", key), Forget(key))

    def is_tuning(self, key: str) -> bool:
        """Tell whether this service is its, and the process is up."""
        return self.is_up and key in self._targets

    def learn(self, text: str) -> None:
        """Tell it what pods of other processes found out."""
        self._put("learned", Learned(text))

    async def annotations(self, since_ms: float) -> list[Annotation]:
        """Ask it for marks; none where it does not answer in time."""
        if self._channel is None:
            return []
        number = next(self._numbers)
        future: asyncio.Future[list[Annotation]] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        self._put(("marks", number), MarksWanted(number, since_ms))
        try:
            async with asyncio.timeout(_MARKS_WITHIN_S):
                return await future
        except TimeoutError:
            _log.warning("shard %d: no marks in %.0f s", self.number, _MARKS_WITHIN_S)
            return []
        finally:
            del self._asked[number]

    async def run(self) -> None:
        """Keep the process running until cancelled; then it is dead."""
        await self._is_wanted.wait()
        clock, pause_s = asyncio.get_running_loop().time, _PAUSE_S
        while True:
            began = clock()
            reason, words = await self._live()
            pause_s = _PAUSE_S if clock() - began > _STEADY_S else pause_s
            self.metrics.shard_ends.labels(str(self.number), reason).inc()
            _log.error("shard %d: %s; another starts in %.0f s", self.number, words, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _live(self) -> tuple[str, str]:
        """Run one process to its end; says in a word and in words what ended it."""
        own, other = socket.socketpair()
        try:
            with other:
                command = self.program.command(other.fileno(), self.number)
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=[other.fileno()]
                )
        except OSError as problem:
            own.close()
            return "ended", f"no process could be started: {problem}"
        tasks: list[asyncio.Task[None]] = []
        try:
            self.pid, self._cpu_s = process.pid, 0.0
            self._channel = channel = await to_shard(own)
            for key, follow in self._targets.items():
                channel.put(("service", key), follow)
            channel.put("grant", Grant(self._until))
            works = (self._listen(channel), channel.send(), self._watch())
            tasks.extend(asyncio.create_task(work) for work in works)
            ended = asyncio.create_task(process.wait())
            await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
            listening, _, watching = tasks
            if watching.done():
                return "hung", f"no word for {self.program.hang_s:.0f} s"
            bug = listening.exception() if listening.done() else None
            return (
                "ended",
                f"its process could not be heard: {bug!r}" if bug else "its process ended",
            )
        finally:
            await self._end(process, tasks)

    async def _end(
        self, process: asyncio.subprocess.Process, tasks: Sequence[asyncio.Task[None]]
    ) -> None:
        self._show_up(is_up=False)
        channel, self._channel, self.pid = self._channel, None, None
        for task in (*tasks, *self._answers):
            task.cancel()
        if channel is not None:
            channel.close()
        await asyncio.gather(*tasks, *self._answers, return_exceptions=True)
        try:  # it ends as the channel does, but where it hangs
            async with asyncio.timeout(_END_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _watch(self) -> None:
        """Return once nothing was heard for too long, in seconds in which we ourselves ran."""
        silent_s = 0.0
        while silent_s < (self.program.hang_s if self.is_up else _START_S):
            num_heard = self._num_heard
            await asyncio.sleep(_TICK_S)
            silent_s = 0.0 if self._num_heard != num_heard else silent_s + _TICK_S

    async def _listen(self, channel: Channel[ToShard, FromShard]) -> None:
        async for message in channel.messages():
            self._num_heard += 1
            self._hear(message)

    def _hear(self, message: FromShard) -> None:
        match message:
            case Alive():
                self._note_alive(message)
            case Concluded(uid, report):
                self._reports[report.key] = report
                self.listener.concluded(uid, report)
            case Unchanged(uid, key, at):
                if (last := self._reports.get(key)) is not None:
                    self.listener.concluded(uid, replace(last, at=at))
            case Failed(key):
                self.listener.failed(key)
            case Marks(number, marks):
                if (future := self._asked.get(number)) is not None and not future.done():
                    future.set_result(marks)
            case WarmStartWanted() | WarmStartFound():
                task = asyncio.create_task(self._answer(message), name="warm start of a shard")
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)

    async def _answer(self, asked: WarmStartWanted | WarmStartFound) -> None:
        answer = await self.warm_start.answer(asked)
        self._put(answer, answer)
        if isinstance(asked, WarmStartFound) and not answer.problem:
            self.learned(self, answer.text)

    def _note_alive(self, alive: Alive) -> None:
        name = str(self.number)
        self.metrics.shard_cpu.labels(name).inc(max(0.0, alive.cpu_s - self._cpu_s))
        self.metrics.shard_memory.labels(name).set(alive.rss_bytes)
        self.metrics.shard_services.labels(name).set(len(self._targets))
        self._cpu_s = alive.cpu_s
        self._show_up(is_up=True)

    def _show_up(self, *, is_up: bool) -> None:
        self.is_up = is_up
        self.metrics.shard_up.labels(str(self.number)).set(is_up)

    def _put(self, slot: Hashable, message: ToShard, *, is_last: bool = False) -> None:
        if self._channel is not None:
            self._channel.put(slot, message, is_last=is_last)
