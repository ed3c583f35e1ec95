"""The keeper, with small programs in place of a cluster."""

import os
import signal
import sys
from pathlib import Path

import pytest

from local_cluster.enclosure import kept
from local_cluster.errors import ClusterFailedError
from local_cluster.plan import Plan, Process
from paceline_testing.waiting import wait_until


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


LISTEN = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
time.sleep(600)
"""


def test_a_part_starts_when_the_one_before_it_is_ready(tmp_path: Path) -> None:
    """The API server must not start before etcd answers."""
    socket, seen = tmp_path / "first.sock", tmp_path / "seen"
    look = (
        "import pathlib, sys, time\n"
        "pathlib.Path(sys.argv[2]).write_text(str(pathlib.Path(sys.argv[1]).exists()))\n"
        "time.sleep(600)"
    )
    processes = [
        Process("first", [*python(LISTEN), str(socket)], ready=f"unix://{socket}"),
        Process("second", [*python(look), str(socket), str(seen)]),
    ]

    with kept(Plan(logs=tmp_path / "logs", processes=processes)):
        wait_until(lambda: seen.exists() and seen.read_text())
        assert seen.read_text() == "True"


def test_a_part_that_ends_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The starting process learns at once why a cluster did not start."""
    processes = [
        Process("broken", python("raise SystemExit('no room')"), ready="unix:///nowhere.sock")
    ]

    with (
        pytest.raises(ClusterFailedError, match=r"(?s)broken ended with code 1.*no room"),
        kept(Plan(logs=tmp_path / "logs", processes=processes)),
    ):
        pytest.fail("it cannot be up")


def test_a_failed_setup_is_named_with_its_command(tmp_path: Path) -> None:
    """Nothing is started on a machine that could not be set up."""
    plan = Plan(logs=tmp_path / "logs", setup=[["ls", "/nowhere-at-all"]])

    with pytest.raises(ClusterFailedError, match="ls /nowhere-at-all"), kept(plan):
        pytest.fail("it cannot be up")


def test_a_part_that_returns_is_started_again_after_its_pause(tmp_path: Path) -> None:
    """So may the API server be stopped for a while, without an end of the cluster."""
    mark = tmp_path / "pids"
    code = (
        "import os, pathlib, sys, time\n"
        "with pathlib.Path(sys.argv[1]).open('a') as file:\n"
        "    file.write(f'{os.getpid()}\\n')\n"
        "time.sleep(600)"
    )
    part = Process("part", [*python(code), str(mark)], returns_after_s=0.1)

    def starts() -> list[str]:
        return mark.read_text().splitlines() if mark.exists() else []

    with kept(Plan(logs=tmp_path / "logs", processes=[part])) as keeper:
        wait_until(starts)
        os.kill(int(starts()[0]), signal.SIGKILL)
        wait_until(lambda: len(starts()) == 2)
        assert keeper.poll() is None


def test_the_parts_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    """However a test run dies, the pipe closes: no part of a cluster outlives it."""
    mark = tmp_path / "pid"
    code = (
        "import os, pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    part_of_a_cluster = Process("part", [*python(code), str(mark)])

    with kept(Plan(logs=tmp_path / "logs", processes=[part_of_a_cluster])) as keeper:
        wait_until(lambda: mark.exists() and mark.read_text())
        part = Path("/proc") / mark.read_text()
        assert part.exists()
        assert keeper.stdin is not None
        keeper.stdin.close()  # as the kernel does for a process that is killed
        wait_until(lambda: not part.exists())
