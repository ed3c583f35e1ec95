"""A command that is told to stop ends its children and then itself, however it was started."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_testing.waiting import wait_until

DEADLINE_S = 60.0
CHILD = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
COMMAND = f"""
import asyncio, sys
from pathlib import Path
from paceline_cli.run import run
from paceline_cli.up.child import Program, kept_running

async def work():
    tied = (sys.executable, "-m", "paceline_cli.up.exits_with_parent", sys.executable, "-c")
    program = Program("engine", (*tied, {CHILD!r}), {{}}, Path(sys.argv[1]), 30.0)
    async with kept_running(program, lambda _: None):
        await asyncio.Event().wait()

run(work())
"""
IGNORING_SIGINT = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""As `nohup` in a script or a job in the background of a shell starts its programs."""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("start", "sent"),
    [((), signal.SIGINT), ((), signal.SIGTERM), (IGNORING_SIGINT, signal.SIGINT)],
    ids=["SIGINT", "SIGTERM", "SIGINT where it was ignored"],
)
def test_a_signal_ends_the_command_and_its_child(
    tmp_path: Path, start: tuple[str, ...], sent: signal.Signals
) -> None:
    """A service that nobody can end would hold its port and its cores for ever."""
    log = tmp_path / "log"
    log.touch()
    command = subprocess.Popen(
        [*start, sys.executable, "-c", COMMAND, str(log)], stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: log.read_text().endswith("\n"), within_s=DEADLINE_S)
        child = int(log.read_text())

        command.send_signal(sent)

        output, _ = command.communicate(timeout=DEADLINE_S)
    finally:
        command.kill()
        command.communicate()
    assert (output, command.returncode) == ("stopped\n", 130)
    assert not is_alive(child)
