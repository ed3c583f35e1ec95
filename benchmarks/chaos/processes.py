"""The processes and connections of the local cluster, as root of this machine sees them."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_CONNECTION = re.compile(r"src=\S+ dst=\S+ sport=(\d+) dport=\d+ src=(\S+)")


def of_part(name: str, folder: Path) -> int:
    """Return the process id of a part of the cluster (`etcd`) that keeps its files in `folder`.

    Raises `LookupError` where it does not run.
    """
    for process in _processes():
        command = _read(process / "cmdline").split("\0")
        is_its_own = any(str(folder) in argument for argument in command[1:])
        if Path(command[0]).name == name and is_its_own:
            return int(process.name)
    raise LookupError(f"{name} does not run")


def of_container(container_id: str) -> int:
    """Return the process id of a container's first process, of which all others die.

    Raises `LookupError` where it does not run.
    """
    short = container_id.rpartition("/")[2]
    for process in _processes():
        if short in _read(process / "cgroup") and is_first(_read(process / "status")):
            return int(process.name)
    raise LookupError(f"{container_id} does not run")


def is_first(status: str) -> bool:
    """Whether `/proc/PID/status` is that of process 1 of its own namespace."""
    [line] = [line for line in status.splitlines() if line.startswith("NSpid:")] or [""]
    return line.split()[-1:] == ["1"]


def ports_to(pod_ip: str, *, beside: int) -> frozenset[int]:
    """Return the clients' ports of the connections that end at this pod.

    They are read from the connection table of the network in which process `beside` is.
    """
    command = ["nsenter", f"--net=/proc/{beside}/ns/net", "conntrack", "-L", "-p", "tcp"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    return ports_in(listed.stdout, pod_ip)


def ports_in(table: str, pod_ip: str) -> frozenset[int]:
    """Return the callers' ports of all connections that this pod answers."""
    found = _CONNECTION.findall(table)
    return frozenset(int(port) for port, answers in found if answers == pod_ip)


def freeze_in_bursts(pid: int, *, for_s: float, stopped_s: float, running_s: float) -> None:
    """Stop and continue a process in turn; it runs at the end, whatever happens."""
    end = time.monotonic() + for_s
    try:
        while time.monotonic() < end:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stopped_s)
            os.kill(pid, signal.SIGCONT)
            time.sleep(running_s)
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_for_end(pid: int, *, within_s: float) -> None:
    """Return once the process has ended; raises `TimeoutError`."""
    end = time.monotonic() + within_s
    while (status := _read(Path("/proc") / str(pid) / "status")) and "State:\tZ" not in status:
        if time.monotonic() > end:
            raise TimeoutError(f"process {pid} has not ended within {within_s:g} s")
        time.sleep(0.1)


def _processes() -> Iterator[Path]:
    return (path for path in Path("/proc").iterdir() if path.name.isdigit())


def _read(path: Path) -> str:
    """Read a file of a process; empty where the process has ended meanwhile."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
