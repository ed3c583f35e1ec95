"""Puts a process and its threads where `cores` chose.

OpenMP pins its own threads, as OMP_PLACES says when it is loaded. That holds for every team of
torch's and of the compiled ops, which share one OpenMP, and for threads that it starts again after
a smaller team; pinning them from outside would not.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from paceline_engine.hardware.cores import CoreUse, CpuShare, choose_cores
from paceline_engine.settings import Settings

_PLACES = ("OMP_PLACES", "OMP_PROC_BIND")
_SPIN_COUNT = "GOMP_SPINCOUNT"
_SPINS = "1000"
"""Turns of some ten nanoseconds that a thread waits for another before it sleeps, on shared cores.

OpenMP's own 300,000 keep a core from the very thread that is waited for, where others compute on it
too. On two busy cores a decode took 25 to 65 ms (medians of runs) with 1,000, and 77 to 244 ms with
20,000 or more; how busy the cores were differed between the runs.
"""


def core_use(settings: Settings, share: CpuShare, rank: int = 0) -> CoreUse:
    """Choose threads and cores of one of the ranks that the settings ask for."""
    return choose_cores(
        share,
        threads=settings.threads,
        pin=settings.pin_threads,
        rank=rank,
        ranks=settings.tensor_parallel_size,
    )


def place(use: CoreUse) -> None:
    """Place this process. It must not have loaded OpenMP, and so not imported torch."""
    os.sched_setaffinity(0, use.cpus)
    os.environ.update(_environment(use))


@contextmanager
def placed(use: CoreUse) -> Iterator[None]:
    """Place processes that are started inside the block; this one is as before after it."""
    cpus = os.sched_getaffinity(0)
    before = {name: os.environ.get(name) for name in (*_PLACES, _SPIN_COUNT)}
    _forget(_PLACES)
    place(use)
    try:
        yield
    finally:
        _forget(before)
        os.environ.update({name: value for name, value in before.items() if value is not None})
        os.sched_setaffinity(0, cpus)


def leave_core() -> None:
    """Let the calling thread run wherever the container may.

    A thread that is no thread of OpenMP inherits the one core of the thread that started it.
    """
    if "OMP_PLACES" in os.environ and len(os.sched_getaffinity(0)) == 1:
        # The kernel takes from it what the cpuset allows.
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def leave_core_for_places() -> None:
    """Let the calling thread run on every core that this process computes on, and on no other.

    Memory comes from the node of the core that first touches it.
    """
    places = os.environ.get("OMP_PLACES", "")
    if re.fullmatch(r"\{\d+\}(,\{\d+\})*", places):
        os.sched_setaffinity(0, {int(cpu) for cpu in re.findall(r"\d+", places)})


def _environment(use: CoreUse) -> dict[str, str]:
    if not use.pins:
        return {_SPIN_COUNT: os.environ.get(_SPIN_COUNT, _SPINS)}
    places = ",".join(f"{{{cpu}}}" for cpu in use.pins)
    return dict(zip(_PLACES, (places, "close"), strict=True))


def _forget(names: Iterable[str]) -> None:
    for name in names:
        os.environ.pop(name, None)
