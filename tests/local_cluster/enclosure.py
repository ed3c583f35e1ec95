"""Starts a keeper, plain or in namespaces of its own, and ends it."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_cluster import keeper, network, node
from local_cluster.errors import ClusterFailedError
from local_cluster.plan import Plan

# With the keeper as process 1 of all these, its end unmounts, unroutes and kills everything.
_UNSHARE = (
    *("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"),
    *("--uts", "--ipc", "--cgroup"),
)
_STARTED_WITHIN_S = 600
_ENDED_WITHIN_S = 120


@contextmanager
def kept(plan: Plan) -> Iterator[subprocess.Popen[bytes]]:
    """Keep the plan's processes while the body runs."""
    with _keeper(plan, prefix=()) as process:
        _wait_until_up(process)
        yield process


@contextmanager
def enclosed(plan: Plan) -> Iterator[int]:
    """Like `kept`, in namespaces of its own; yield the process id to enter them by."""
    _make_cgroups()
    try:
        with _keeper(plan, prefix=_UNSHARE) as process:
            _wait_until_up(process)
            pid = _only_child(process.pid)
            network.join(pid)
            yield pid
    finally:
        network.part()
        _remove_cgroups()


@contextmanager
def _keeper(plan: Plan, *, prefix: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    plan.logs.mkdir(parents=True, exist_ok=True)
    plan_file = plan.logs / "plan.json"
    plan.write(plan_file)
    command = [*prefix, sys.executable, str(Path(keeper.__file__)), str(plan_file)]
    with (
        (plan.logs / "keeper.log").open("ab") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches us, and we end it in order
        ) as process,
    ):
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_ENDED_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()  # --kill-child takes the namespaces along


def _wait_until_up(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    give_up_at = time.monotonic() + _STARTED_WITHIN_S
    while time.monotonic() < give_up_at:
        readable, _, _ = select.select([process.stdout], [], [], 1)
        if readable:
            line = process.stdout.readline()
            answer = json.loads(line) if line else {"failed": "its keeper ended, see keeper.log"}
            if "failed" in answer:
                raise ClusterFailedError(f"the local cluster did not start: {answer['failed']}")
            return
    raise ClusterFailedError(f"the local cluster was not up within {_STARTED_WITHIN_S} s")


def _only_child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _cgroup_roots() -> list[Path]:
    """The root of each cgroup hierarchy: many with version 1, one with version 2."""
    top = Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top]
    return [path for path in top.iterdir() if path.is_dir() and not path.is_symlink()]


def _make_cgroups() -> None:
    """Make the root of the pods' cgroups, which the kubelet needs."""
    _remove_cgroups()
    for root in _cgroup_roots():
        group = root / node.CGROUP
        group.mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):  # version 1 leaves them empty: unusable
            if (root / inherited).exists() and (group / inherited).exists():
                (group / inherited).write_text((root / inherited).read_text())


def _remove_cgroups() -> None:
    """Remove the pods' empty cgroups, the innermost first."""
    for root in _cgroup_roots():
        for folder, _, _ in os.walk(root / node.CGROUP, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:  # a process is still ending: the next start tries again
                continue
