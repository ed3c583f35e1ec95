"""StepWatch: a thread that notices a step that never returns, and then ends the process.

A device that hangs raises nothing, and the heartbeat goes on beside it: without this the sidecar
would take requests for ever that nobody answers. When the process ends, the sidecar answers 503 at
once, and the kubelet (or `paceline up`) starts another engine.

Time alone does not tell a hang from an honest step: prompts take seconds on a CPU, and cores may be
taken. So a step has hung

* when it is there for long, and has spent far longer than predicted. What its threads waited for a
  core was not spent, and of a process that was stopped and goes on only a moment counts;
* on a CPU also when nothing of the process has run for a while, however long it was to take.

The thread cannot run where the step holds Python's lock while it hangs. Then the heartbeat stops
too, which the sidecar notices; and a timer of `faulthandler`, which needs no lock, ends the process
once the thread has not reset it for long.
"""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType

from paceline_engine.process.thread_times import (
    ThreadTimes,
    read_thread_times,
    use_between,
)

STDERR = 2
"""The descriptor: writing to it needs no lock of Python's."""
_LOOKS = 20
"""Per timeout: how late a hang may be seen, a twentieth of the timeout."""
_STOPPED_LOOKS = 3.0
"""A look that comes later than this many periods was held up, and so was the step."""
_PATIENCE = 10.0
"""A step may take this many times its prediction."""
_LEAST_SPENT = 0.25
"""Share of the timeout that a hung step must have run: short predictions may be far off."""
_COMPILING = 15.0
"""A step that compiles a kernel may take this many timeouts."""
_NO_LOCK = 4.0
"""The timer goes off after this many timeouts: a paused process may go on before."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """When a step has hung, in seconds."""

    least_s: float
    """A step that has taken less time has not hung; 0 turns the watch off."""
    expected_s: Callable[[], float] = lambda: 0.0
    """How long the step under way should take."""
    sleeps_when_hung: bool = False
    """Whether nothing but the process's own threads computes, so that one of them always runs."""


@dataclass(slots=True)
class Suspect:
    """A step that was already running at the previous check."""

    number: int
    seen_at: float
    times: ThreadTimes
    taken_s: float = 0.0
    """How long it has taken."""
    spent_s: float = 0.0
    """The same without what held it up."""
    asleep_s: float = 0.0
    """For how long nothing has run."""

    def look(self, now: float, times: ThreadTimes, *, every_s: float) -> None:
        """Add what passed since the last look."""
        elapsed_s = min(now - self.seen_at, _STOPPED_LOOKS * every_s)
        use = use_between(self.times, times, elapsed_s)
        self.taken_s += elapsed_s
        self.spent_s += elapsed_s - use.held_up_s
        self.asleep_s = self.asleep_s + elapsed_s if use.is_asleep else 0.0
        self.seen_at, self.times = now, times

    def has_hung(self, limits: StepLimits, frame: FrameType | None) -> bool:
        """Judge it; `frame` is where its thread stands."""
        if limits.sleeps_when_hung and self.asleep_s >= limits.least_s:
            return True
        least_spent_s = max(_LEAST_SPENT * limits.least_s, _PATIENCE * limits.expected_s())
        if self.taken_s < limits.least_s or self.spent_s < least_spent_s:
            return False
        return self.spent_s >= _COMPILING * limits.least_s or not is_compiling(frame)


def is_compiling(frame: FrameType | None) -> bool:
    """Return whether a kernel is compiled there: the first of its shape, once in a cache's life."""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("triton.compiler"):
            return True
        frame = frame.f_back
    return False


@dataclass(slots=True)
class _Now:
    """The step under way: the step loop writes it, the watching thread reads it."""

    number: int = 0
    """Of the newest step."""
    runs: bool = False
    thread: int = field(default_factory=threading.get_ident)


class StepWatch:
    """Calls `hung`, once and from a thread of its own, when a step takes longer than it may."""

    def __init__(
        self,
        limits: StepLimits,
        hung: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
        times: Callable[[], ThreadTimes] | None = None,
    ) -> None:
        """The thread that makes it is the one that steps."""
        self._limits = limits
        self._hung = hung
        self._clock = clock
        self._times = times or partial(read_thread_times, threading.get_native_id())
        self._now = _Now()
        self._suspect: Suspect | None = None
        self._every_s = limits.least_s / _LOOKS
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on."""
        if self._limits.least_s > 0:
            self._thread = threading.Thread(target=self._watch, name="paceline-watch", daemon=True)
            self._thread.start()

    def __enter__(self) -> None:
        """Note that a step begins."""
        self._now.number += 1
        self._now.runs = True

    def __exit__(self, *_: object) -> None:
        """Note that it has returned."""
        self._now.runs = False

    def close(self) -> None:
        """Watch no longer."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def look(self) -> bool:
        """Look at the step under way; return whether it has hung."""
        number, now = self._now.number, self._clock()
        if not self._now.runs:
            self._suspect = None
        elif self._suspect is None or self._suspect.number != number:
            # Steps take milliseconds: hardly one is here still at the next look.
            self._suspect = Suspect(number, now, self._times())
        else:
            self._suspect.look(now, self._times(), every_s=self._every_s)
            frame = sys._current_frames().get(self._now.thread)  # noqa: SLF001 - the only way to see it
            return self._suspect.has_hung(self._limits, frame)
        return False

    def _watch(self) -> None:
        while True:
            faulthandler.dump_traceback_later(
                _NO_LOCK * self._limits.least_s, exit=True, file=STDERR
            )
            if self._is_over.wait(self._every_s):
                return
            if self.look() and self._suspect is not None:
                self._hung(self._suspect.taken_s)
                return
