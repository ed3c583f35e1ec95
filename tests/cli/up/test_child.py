"""Children are restarted when they die, and end when we do."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_cli.up.child import ChildExit, Program, kept_running

READY_THEN_WAIT = "import signal, sys; print('up', flush=True); signal.pause()"
DEAF = (
    "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print(os.getpid(), 'up', flush=True); signal.pause()"
)


def a_program(log: Path, code: str, *, grace_s: float = 30.0) -> Program:
    return Program("engine", (sys.executable, "-c", code), {}, log, grace_s)


async def until_log_says(log: Path, text: str) -> str:
    """Wait for a child's own words; a file tells no one when it grows."""
    async with asyncio.timeout(60):
        while text not in (words := await asyncio.to_thread(log.read_text)):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
    return words


async def test_a_child_that_dies_is_reported_and_started_again(tmp_path: Path) -> None:
    """As a kubelet would, with a pause that doubles."""
    exits: list[ChildExit] = []
    pauses: list[float] = []
    enough = asyncio.Event()

    async def no_pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 3:
            enough.set()
            await asyncio.Event().wait()

    program = a_program(tmp_path / "log", "import sys; print('up'); sys.exit(7)")
    async with kept_running(program, exits.append, sleep=no_pause), asyncio.timeout(60):
        await enough.wait()

    assert [end.code for end in exits] == [7, 7, 7]
    assert pauses == [1.0, 2.0, 4.0]
    assert (tmp_path / "log").read_text() == "up\n" * 3


async def test_leaving_the_block_ends_the_child(tmp_path: Path) -> None:
    """Nothing may go on serving unseen."""
    exits: list[ChildExit] = []
    log = tmp_path / "log"
    log.touch()
    code = "import os; print(os.getpid(), 'up', flush=True); " + READY_THEN_WAIT

    async with kept_running(a_program(log, code), exits.append):
        pid = int((await until_log_says(log, "up")).split()[0])

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert exits == []


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After its grace."""
    log = tmp_path / "log"
    log.touch()

    async with kept_running(a_program(log, DEAF, grace_s=0.05), lambda _: None):
        pid = int((await until_log_says(log, "up")).split()[0])

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_verdict_that_restarts_are_useless_ends_the_block(tmp_path: Path) -> None:
    """A model that does not exist will not exist after the tenth restart either."""

    def give_up(_: ChildExit) -> None:
        raise RuntimeError("useless")

    with pytest.raises(ExceptionGroup) as problems:
        async with kept_running(a_program(tmp_path / "log", "exit(1)"), give_up):
            await asyncio.Event().wait()

    assert problems.group_contains(RuntimeError, match="useless")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at a parent's death")
def test_a_child_ends_when_its_parent_is_killed() -> None:
    """SIGKILL lets a parent stop nothing; the kernel does it."""
    child = f"import os, signal; print(os.getpid(), flush=True); {READY_THEN_WAIT}"
    parent = (
        "import subprocess, sys;"
        f"subprocess.Popen([sys.executable, '-m', 'paceline_cli.up.exits_with_parent',"
        f" sys.executable, '-c', {child!r}]).wait()"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert int(run.stdout.readline()) != run.pid
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGKILL)

        assert run.stdout.read() == ""  # the pipe ends when the last holder, the child, has ended
