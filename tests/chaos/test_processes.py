import subprocess
import sys
from pathlib import Path

import pytest

from chaos import processes
from paceline_testing.waiting import wait_until

TABLE = """\
tcp 6 86399 ESTABLISHED src=10.98.0.1 dst=10.96.7.7 sport=40001 dport=8000 src=10.88.0.5 \
dst=10.99.0.1 sport=8000 dport=61001 [ASSURED] mark=0 use=1
tcp 6 86399 ESTABLISHED src=10.98.0.1 dst=10.96.7.7 sport=40002 dport=8000 src=10.88.0.6 \
dst=10.99.0.1 sport=8000 dport=61002 [ASSURED] mark=0 use=1
tcp 6 110 TIME_WAIT src=10.98.0.1 dst=10.96.7.7 sport=40003 dport=8000 src=10.88.0.5 \
dst=10.99.0.1 sport=8000 dport=61003 [ASSURED] mark=0 use=1
"""


def test_connections_are_told_apart_by_the_pod_that_answers() -> None:
    """All go to one ClusterIP, and the node has changed the pod's side of the ports."""
    assert processes.ports_in(TABLE, "10.88.0.5") == {40001, 40003}
    assert processes.ports_in(TABLE, "10.88.0.7") == set()


def test_the_first_process_of_a_namespace_is_known_by_its_innermost_id() -> None:
    assert processes.is_first("Name:\tx\nNSpid:\t4711\t31\t1\n")
    assert not processes.is_first("Name:\tx\nNSpid:\t4711\t31\t12\n")


def test_a_part_is_found_by_its_name_and_its_own_folder(tmp_path: Path) -> None:
    """Another cluster's on this machine is left alone."""
    (tmp_path / "etcd").symlink_to(sys.executable)
    wait = "import sys; sys.stdin.read()"
    argv = [str(tmp_path / "etcd"), "-c", wait, f"--data-dir={tmp_path}/data"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as part:
        # Its command line can be read a moment after it has begun.
        wait_until(lambda: Path(f"/proc/{part.pid}/cmdline").read_bytes())
        assert processes.of_part("etcd", tmp_path) == part.pid
        with pytest.raises(LookupError, match="etcd"):
            processes.of_part("etcd", tmp_path / "other")


def test_a_process_that_was_slowed_down_runs_at_the_end() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        processes.freeze_in_bursts(process.pid, for_s=0.05, stopped_s=0.01, running_s=0.01)
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state != "T"
        process.communicate(b"\n")

    assert process.returncode == 0


def test_the_end_of_a_process_is_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(TimeoutError):
            processes.wait_for_end(process.pid, within_s=0.0)
        process.communicate(b"\n")
        processes.wait_for_end(process.pid, within_s=10.0)
