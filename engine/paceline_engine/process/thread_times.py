"""What Linux reports of a step's threads: how long each ran, and waited for a core.

A thread that hangs sleeps, or runs on and on. One whose core is taken waits, and is not to blame.
The ranks that share a model are children of this process, so theirs count as well. The socket's
thread, and others beside the step, do not: they say nothing of it, whatever they do.
"""

import resource
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_ASLEEP = 0.25
"""Share of the time between two looks: a thread that ran for less counts as asleep."""
_BESIDE = "(ZMQbg/"
"""How the names of ZeroMQ's own threads begin, in brackets."""
_SAME_S = 1e-6


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """One thread since its start, in seconds."""

    ran_s: float
    waited_s: float
    """For a core, up to the last time that it got one."""
    is_runnable: bool
    """Whether it runs now, or waits for a core."""


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """The step's threads at one moment."""

    threads: Mapping[int, ThreadTime]
    page_faults: int
    """Pages that had to be read from a disk."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """What the threads did between two looks."""

    held_up_s: float
    """How long one of them waited for a core; all the time where pages were read from a disk."""
    is_asleep: bool
    """Whether none of them ran, and none was held up."""


def use_between(before: ThreadTimes, after: ThreadTimes, elapsed_s: float) -> ThreadUse:
    """Compare two readings; without visible threads report neither held up nor asleep."""
    if after.page_faults != before.page_faults:
        return ThreadUse(elapsed_s, is_asleep=False)
    longest_s = busiest_s = 0.0
    for number, now in after.threads.items():
        then = before.threads.get(number, ThreadTime(0.0, 0.0, is_runnable=False))
        ran_s, waited_s = now.ran_s - then.ran_s, now.waited_s - then.waited_s
        if then.is_runnable and now.is_runnable and ran_s + waited_s < _SAME_S:
            waited_s = elapsed_s  # it waits still: the kernel counts a wait once it is over
        longest_s = max(longest_s, waited_s)
        busiest_s = max(busiest_s, ran_s + waited_s)
    return ThreadUse(
        min(longest_s, elapsed_s),
        is_asleep=bool(after.threads) and busiest_s < _ASLEEP * elapsed_s,
    )


def read_thread_times(stepping: int | None, root: Path = Path("/proc")) -> ThreadTimes:
    """Look at the threads of a step that the thread `stepping` runs, by its native number.

    Those are itself, what no thread of Python's is, and the children's. There are none where the
    kernel does not tell.
    """
    beside = {thread.native_id for thread in threading.enumerate()} - {stepping}
    threads: dict[int, ThreadTime] = {}
    for process in ("self", *_children(root)):
        for folder in (root / process / "task").glob("[0-9]*"):
            number = int(folder.name)
            time = _read_thread(folder) if number not in beside else None
            if time is not None:
                threads[number] = time
    return ThreadTimes(threads, resource.getrusage(resource.RUSAGE_SELF).ru_majflt)


def _children(root: Path) -> list[str]:
    found: list[str] = []
    for path in (root / "self/task").glob("[0-9]*/children"):
        found += _read(path).split()
    return found


def _read_thread(folder: Path) -> ThreadTime | None:
    """Return None for a thread that has just ended, or is not of a step."""
    times = _read(folder / "schedstat").split()
    # The name, in brackets, may hold spaces.
    name, _, rest = _read(folder / "stat").rpartition(")")
    state = rest.split()
    if not times or not state or _BESIDE in name:
        return None
    ran_ns, waited_ns, _ = map(int, times)
    return ThreadTime(ran_ns / 1e9, waited_ns / 1e9, is_runnable=state[0] == "R")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
