"""A part of the GPU suite while it runs: failures, lost devices, and time that is up."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_suite import child
from gpu_suite.machine import DeviceLostError, Machine
from gpu_suite.page import page_of
from gpu_suite.parts import LOST, TIME_IS_UP, UNFINISHED, run_part, tried
from gpu_suite.record import Broken, Figure, Found, Part, Record, merged
from paceline_testing.clock import ManualClock
from paceline_testing.waiting import wait_until

MACHINE = Machine(is_dry=True)


def test_what_was_measured_before_a_failure_stays() -> None:
    """The other parts go on, and the failure is told."""

    def breaks(_machine: Machine) -> Iterator[Figure]:
        yield Figure("a", 1, "ms")
        raise ValueError("the kernel is wrong")

    part = run_part("engine", breaks, MACHINE, deadline=10.0, clock=ManualClock(0.0))

    assert [figure.name for figure in part.figures] == ["a"]
    assert part.problems == ("ValueError: the kernel is wrong",)


def test_what_breaks_alone_leaves_the_rest_to_be_measured() -> None:
    """One kernel in fifty that does not compile must not cost the other figures."""

    def breaks() -> Iterator[Found]:
        yield Figure("a", 1, "ms")
        raise ValueError("it\ndoes not compile")

    def measure(machine: Machine) -> Iterator[Found]:
        yield from tried("b", breaks, machine)
        yield Figure("c", 1, "ms")

    part = run_part("kernels", measure, MACHINE, deadline=10.0, clock=ManualClock(0.0))

    assert [figure.name for figure in part.figures] == ["a", "c"]
    assert part.broken == (Broken("b", "ValueError: it does not compile"),)
    assert not part.problems
    assert not part.is_whole
    assert "**Broken:** b: ValueError: it does not compile" in page_of(
        merged(Record(), [part]), is_dry=False
    )


def test_a_lost_device_ends_the_process_and_not_the_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an illegal access all calls fail: the next process leaves out what led to it."""
    kept: list[Part] = []

    def wild() -> Iterator[Found]:
        yield from ()
        raise RuntimeError("an illegal memory access was encountered")

    def measure(machine: Machine) -> Iterator[Found]:
        if not machine.passed:
            yield Figure("a", 1, "ms")
            yield from tried("b", wild, machine)
        yield Figure("c", 1, "ms")

    def is_dead(_machine: Machine) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(Machine, "wait", is_dead)
    first = run_part("kernels", measure, MACHINE, 10.0, clock=ManualClock(0.0), keep=kept.append)
    second = run_part(
        "kernels",
        measure,
        replace(MACHINE, passed=frozenset(one.name for one in first.found)),
        deadline=10.0,
        clock=ManualClock(0.0),
        before=first,
    )

    assert LOST in first.problems
    assert kept[-1].broken[0].name == "b"
    assert [figure.name for figure in second.figures] == ["a", "c"]
    assert [one.name for one in second.broken] == ["b"]
    assert not second.problems


def test_a_device_that_lives_is_not_lost() -> None:
    """An error of the host alone."""
    MACHINE.require_alive(ValueError("wrong"))
    with pytest.raises(DeviceLostError, match="wrong; then"):
        Lost(is_dry=True).require_alive(ValueError("wrong"))


class Lost(Machine):
    """All that is asked of it fails."""

    def wait(self) -> None:
        raise RuntimeError("CUDA error")


def test_what_there_is_is_kept_after_each_figure() -> None:
    """A machine may be taken away at any time: till its end a part says that it has none."""
    kept: list[Part] = []

    def measure(_machine: Machine) -> Iterator[Found]:
        yield Figure("a", 1, "ms")
        yield Figure("b", 1, "ms")

    part = run_part(
        "engine", measure, MACHINE, deadline=10.0, clock=ManualClock(0.0), keep=kept.append
    )

    assert [len(one.figures) for one in kept] == [1, 2]
    assert all(one.problems == (UNFINISHED,) for one in kept)
    assert not part.problems


def test_no_figure_is_begun_when_time_is_up() -> None:
    """A machine that is lent is given back in time."""
    clock = ManualClock()

    def slow(_machine: Machine) -> Iterator[Figure]:
        for name in ("a", "b", "c"):
            clock.advance(6.0)
            yield Figure(name, 1, "ms")

    part = run_part("engine", slow, MACHINE, deadline=clock() + 10.0, clock=clock)

    assert [figure.name for figure in part.figures] == ["a", "b"]
    assert part.seconds == 12.0
    assert part.problems == (TIME_IS_UP,)


def test_a_part_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A process of a peer that stayed would hold the GPU's memory."""
    pid = tmp_path / "pid"
    script = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "grandchild = subprocess.Popen(['sleep', '600'])\n"
        "fresh = Path(sys.argv[1] + '.new'); fresh.write_text(str(grandchild.pid))\n"
        "fresh.rename(sys.argv[1])\n"
        "time.sleep(600)"
    )

    def wait_until_begun(_process: Any, timeout: float) -> int:
        assert timeout == 480
        wait_until(pid.exists)
        raise subprocess.TimeoutExpired("", timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "_wait", wait_until_begun)
        why = child.run([sys.executable, "-c", script, str(pid)], 480)

    assert why == "it was stopped after 480 s"
    wait_until(lambda: not is_running(int(pid.read_text())))


def is_running(pid: int) -> bool:
    """A process that has ended may still be in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_part_whose_process_dies_says_how() -> None:
    """A crash of a driver raises nothing that could be caught."""
    assert child.run([sys.executable, "-c", "raise SystemExit(3)"], 60) == (
        "its process ended with status 3"
    )
    assert not child.run([sys.executable, "-c", ""], 60)
