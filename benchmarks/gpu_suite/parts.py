"""One part: its figures as they come, until there are no more, time is up or the device is lost."""

import traceback
from collections.abc import Callable, Iterator
from importlib import import_module

from gpu_suite import page
from gpu_suite.machine import DeviceLostError, Machine
from gpu_suite.record import Absent, Broken, Figure, Found, Part

# By name: each is imported when it runs, and the kernels need neither engine nor transformers.
PARTS = {
    "correctness": "correctness",
    "kernels": "kernel_times",
    "parity": "parity",
    "limits": "limits_under_load",
    "engine": "engine_times",
    "ranks": "rank_sums",
    "peer": "peer",
    "vllm": "vllm_peer",
    "tune": "tuning",
}
ONLY_IF_ASKED_FOR = "tune"
"""A search of many minutes, whose rows serve once they are committed."""
UNFINISHED = "it did not come to its end: what would have followed was not run"
LOST = "the device was lost: what would have followed was not run"
TIME_IS_UP = "time was up: what would have followed was not run; give it more --minutes"

Measure = Callable[[Machine], Iterator[Found]]
MAX_WHY = 600
"""Characters of an error: the rest stands in the output."""


def measure_of(name: str) -> Measure:
    """Find what measures a part."""

    def measure(machine: Machine) -> Iterator[Found]:
        return import_module(f"gpu_suite.{PARTS[name]}").measure(machine)  # type: ignore[no-any-return] # each part has one

    return measure


def run_part(
    name: str,
    measure: Measure,
    machine: Machine,
    deadline: float,
    *,
    clock: Callable[[], float],
    keep: Callable[[Part], None] = lambda _part: None,
    before: Part | None = None,
) -> Part:
    """Take figures until there are no more or time is up; keep them whatever happens then.

    `keep` is given what there is after each, so that nothing is lost with the process. `before` is
    what an earlier try took before it ended.
    """
    started = clock()
    found = {} if before is None else {one.name: one for one in before.found}
    lost_s = 0.0 if before is None else before.seconds

    def part(*problems: str) -> Part:
        return Part(
            name,
            machine.described(),
            lost_s + clock() - started,
            tuple(one for one in found.values() if isinstance(one, Figure)),
            problems,
            tuple(one for one in found.values() if isinstance(one, Absent)),
            tuple(one for one in found.values() if isinstance(one, Broken)),
        )

    try:
        for one in measure(machine):
            found[one.name] = one
            print(f"{name}: {one.name}: {_said(one)}", flush=True)
            if clock() > deadline:
                return part(TIME_IS_UP)
            keep(part(UNFINISHED))
    except DeviceLostError as error:
        return part(LOST, why(error))
    except Exception as error:  # noqa: BLE001 - the other parts are still worth measuring
        traceback.print_exc()
        return part(why(error))
    return part()


def tried(name: str, measure: Callable[[], Iterator[Found]], machine: Machine) -> Iterator[Found]:
    """Give figures, or say why there are none: what follows is worth measuring all the same.

    Raises DeviceLostError where nothing can follow in this process.
    """
    try:
        yield from measure()
    except Exception as error:  # noqa: BLE001 - as above
        traceback.print_exc()
        reason = why(error)
        yield Broken(name, reason)
        machine.require_alive(error)


def why(error: Exception) -> str:
    """Tell an error in a line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:MAX_WHY]}"


def _said(one: Found) -> str:
    return page.shown(one.value, one.unit) if isinstance(one, Figure) else one.why
