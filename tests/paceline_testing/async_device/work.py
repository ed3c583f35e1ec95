"""Work on streams: what must come before what, and which of the rest runs first."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Run: TypeAlias = Callable[[], Any]


@dataclass(eq=False, slots=True)
class Work:
    """One thing that the device does, after those that it needs."""

    run: Run
    needs: tuple["Work", ...] = ()
    is_done: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether everything it needs is done."""
        return all(each.is_done for each in self.needs)


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the device chooses: it may run ahead of who waits, and take any stream first."""

    eagerness: float
    """How likely a piece of work runs before anybody waits, from 0 to 1."""
    seed: int = 0


AT_ONCE = Schedule(1.0)
"""Everything runs when it is queued: what a synchronous device computes."""
LATE = Schedule(0.0)
"""Nothing runs before somebody waits, and then only what must."""


def any_schedule() -> Any:
    """Return Hypothesis' strategy of schedules."""
    from hypothesis import strategies as st  # noqa: PLC0415 - a tool of tests that few need

    eager = st.sampled_from([0.0, 0.2, 0.5, 0.9])
    return st.builds(Schedule, eager, st.integers(0, 1 << 16))


@dataclass(eq=False, slots=True)
class Queue:
    """A stream's work, in order."""

    waiting: deque[Work] = field(default_factory=deque)
    last: Work | None = None


class Worker:
    """Runs what is queued."""

    def __init__(self) -> None:
        self._queues: list[Queue] = []
        self._loose: list[Work] = []
        """Of no stream: memory that is given to others."""
        self._is_running = False
        self.follow(AT_ONCE)

    def follow(self, schedule: Schedule) -> None:
        """Choose by this schedule from now on."""
        self._schedule = schedule
        self._random = random.Random(schedule.seed)

    def queue(self) -> Queue:
        """Make a stream's queue."""
        self._queues.append(Queue())
        return self._queues[-1]

    def add(self, queue: Queue, run: Run, needs: Sequence[Work | None] = ()) -> Work:
        """Queue work behind what the stream has, and behind what else it needs."""
        before = (queue.last, *needs)
        work = Work(run, tuple(each for each in before if each is not None and not each.is_done))
        queue.waiting.append(work)
        queue.last = work
        self._run_some()
        return work

    def add_loose(self, run: Run, needs: Sequence[Work | None]) -> None:
        """Add work that nobody waits for."""
        needed = tuple(each for each in needs if each is not None and not each.is_done)
        self._loose.append(Work(run, needed))
        if not self._is_running:
            self._run_some()

    def wait(self, work: Work | None) -> None:
        """Let the host wait for it."""
        while work is not None and not work.is_done:
            if self._schedule.eagerness == 0:
                self._run_what_must(work)
            else:
                self._run_any()

    def wait_for_all(self) -> None:
        """Let the host wait for everything."""
        while any(queue.waiting for queue in self._queues):
            self._run_any()

    def _run_what_must(self, work: Work) -> None:
        """Do the first of what it needs; memory is given to others as soon as it is free."""
        while unmet := [each for each in work.needs if not each.is_done]:
            work = unmet[0]
        for loose in [each for each in self._loose if each.is_ready]:
            self._do(loose)
        self._do(work)

    def _run_some(self) -> None:
        while self._random.random() < self._schedule.eagerness and self._run_any():
            pass

    def _run_any(self) -> bool:
        ready = [queue.waiting[0] for queue in self._queues if queue.waiting]
        ready = [each for each in ready if each.is_ready]
        ready += [each for each in self._loose[:8] if each.is_ready]
        if ready:
            self._do(self._random.choice(ready))
        return bool(ready)

    def _do(self, work: Work) -> None:
        for queue in self._queues:
            if queue.waiting and queue.waiting[0] is work:
                queue.waiting.popleft()
                break
        else:
            self._loose.remove(work)
        self._is_running = True
        try:
            work.run()
        finally:
            self._is_running = False
        work.is_done = True
        work.run, work.needs = _nothing, ()


def _nothing() -> None:
    return None
