"""Reads what a process may use of the machine's CPUs: affinity, topology, the cgroup's quota."""

import os
from collections.abc import Collection
from pathlib import Path

from paceline_engine.hardware.cores import Cpu, CpuShare, numbers_of
from paceline_engine.hardware.kernel_files import cgroups, read_text

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def read_share(
    *, asked: float | None = None, root: Path = Path("/"), allowed: Collection[int] | None = None
) -> CpuShare:
    """Describe the calling thread's share; `asked` is what the pod asked for.

    What the machine does not tell is taken to be plain: every CPU a core, one node, no quota.
    """
    numbers = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    nodes = _nodes(root)
    return CpuShare(
        tuple(Cpu(number, _core(root, number), nodes.get(number, 0)) for number in numbers),
        num_online=len(numbers_of(read_text(root / _CPUS / "online"))) or len(numbers),
        quota=_quota(root),
        asked=asked or None,
    )


def _core(root: Path, cpu: int) -> int:
    siblings = read_text(root / _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list")
    return min(numbers_of(siblings), default=cpu)


def _nodes(root: Path) -> dict[int, int]:
    """Return each CPU's NUMA node."""
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / _NODES).glob("node[0-9]*")
        for cpu in numbers_of(read_text(folder / "cpulist"))
    }


def _quota(root: Path) -> float | None:
    """Return the smallest quota of the process's cgroup and those above it, in CPUs."""
    found = [quota for folder in cgroups("cpu", root) if (quota := _quota_of(folder)) is not None]
    return min(found, default=None)


def _quota_of(folder: Path) -> float | None:
    """Read `cpu.max` of version 2, or the two files of version 1."""
    quota, _, period = read_text(folder / "cpu.max").strip().partition(" ")
    if not quota:
        quota = read_text(folder / "cpu.cfs_quota_us").strip()
        period = read_text(folder / "cpu.cfs_period_us").strip()
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None  # `max`, -1, or nothing
    return int(quota) / int(period)
