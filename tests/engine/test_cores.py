"""Threads and cores: what a container was given, read from fake machines, and what follows."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline_engine.hardware.cores import (
    Cpu,
    CpuShare,
    PinSetting,
    choose_cores,
    numbers_of,
    ranges,
)
from paceline_engine.hardware.cores_reader import read_share


def _share(
    count: int, *, online: int | None = None, quota: float | None = None, asked: float | None = None
) -> CpuShare:
    """Cores without siblings on one node."""
    cpus = tuple(Cpu(number, number) for number in range(count))
    return CpuShare(cpus, count if online is None else online, quota, asked)


def _two_sockets(*, quota: float | None = None) -> CpuShare:
    """Two nodes of 4 cores and 8 CPUs each; siblings are 8 apart, as Linux numbers them."""
    cpus = tuple(Cpu(number, number % 8, number % 8 // 4) for number in range(16))
    return CpuShare(cpus, 16, quota)


@pytest.mark.parametrize(
    ("share", "threads", "reason"),
    [
        (_share(1), 1, "one for the core"),
        (_share(64), 64, "one for each of the 64 cores"),
        (_share(8, quota=4.0), 4, "as the CPU quota is 4"),
        (_share(8, quota=2.9), 2, "as the CPU quota is 2.9"),
        (_share(8, quota=64.0), 8, "one for each of the 8 cores"),
        (_share(8, quota=0.5), 1, "as the CPU quota is 0.5"),
        (_share(8, asked=1.5), 2, "as the pod asked for 1.5 CPUs"),
        (_share(8, asked=6.0, quota=3.0), 3, "as the CPU quota is 3"),
        (_two_sockets(), 8, "one for each of the 8 cores"),
    ],
    ids=["one", "all", "quota", "floor", "high", "half", "asked", "both", "siblings"],
)
def test_threads_are_what_was_given(share: CpuShare, threads: int, reason: str) -> None:
    """Not what the machine has: a thread beyond the quota has the others stopped with it."""
    use = choose_cores(share)

    assert (use.threads, use.reason) == (threads, reason)


def test_half_a_core_is_said_to_be_slow() -> None:
    """Nobody should look for a defect in steps that take twice as long."""
    [remark] = choose_cores(_share(8, quota=0.5)).remarks

    assert remark == (
        "The CPU quota is 0.5 of a core: one thread computes, and it is stopped for 50% of the "
        "time, so every step takes 2 times as long as on a whole core."
    )
    assert not choose_cores(_share(8, quota=1.0)).remarks


@pytest.mark.parametrize(
    ("share", "cores"),
    [(_share(4), "4 cores"), (_share(64, quota=2.5), "2 cores"), (_share(1), "1 core")],
    ids=["cores", "quota", "one"],
)
def test_more_threads_than_cores_are_obeyed_and_remarked(share: CpuShare, cores: str) -> None:
    """It is a setting, but hardly ever what its writer wants."""
    use = choose_cores(share, threads=8)

    assert use.threads == 8
    assert "PACELINE_ENGINE_THREADS is 8, but the engine was given " + cores in use.remarks[0]
    assert not choose_cores(share, threads=1).remarks


@pytest.mark.parametrize(
    ("share", "pin", "pins"),
    [
        (_share(4, online=64, quota=4.0), "auto", (0, 1, 2, 3)),
        (_share(4, online=64, asked=4.0), "auto", (0, 1, 2, 3)),
        (_share(4, online=64, quota=4.0), "off", ()),
        (_share(60, online=64, quota=4.0), "auto", ()),
        (_share(60, online=64), "auto", ()),
        (_share(4, quota=4.0), "auto", ()),
        (_share(4), "auto", ()),
        (_share(4), "on", (0, 1, 2, 3)),
    ],
    ids=["exclusive", "without quota", "off", "pool", "pool, no limit", "quota", "free", "on"],
)
def test_threads_are_pinned_where_nobody_else_computes(
    share: CpuShare, pin: PinSetting, pins: tuple[int, ...]
) -> None:
    """On a core that is shared, a pinned thread waits for a stranger and cannot move."""
    assert choose_cores(share, pin=pin).pins == pins


def test_one_of_two_siblings_is_pinned() -> None:
    """Both share the arithmetic units of a core."""
    cpus = tuple(Cpu(number, number % 32) for number in (4, 5, 36, 37))
    use = choose_cores(CpuShare(cpus, 64, quota=4.0))

    assert (use.threads, use.pins, use.cpus) == (2, (4, 5), (4, 5, 36, 37))


def test_pins_need_a_core_for_each_thread() -> None:
    """Two pinned threads on one core would take turns for ever."""
    use = choose_cores(_share(2), threads=3, pin="on")

    assert use.pins == ()
    assert "3 threads of 1 rank have 2 cores: none is pinned" in use.remarks[-1]


def test_each_rank_has_a_node() -> None:
    """The weights that a rank packs lie in the memory of the node that it runs on."""
    first, second = (choose_cores(_two_sockets(), rank=rank, ranks=2) for rank in (0, 1))

    assert (first.threads, first.cpus) == (4, (0, 1, 2, 3, 8, 9, 10, 11))
    assert (second.threads, second.cpus) == (4, (4, 5, 6, 7, 12, 13, 14, 15))
    assert not first.remarks


def test_ranks_of_one_node_share_its_cores() -> None:
    """Four ranks on two nodes: each node has two, and no core is pinned twice."""
    uses = [choose_cores(_two_sockets(), pin="on", rank=rank, ranks=4) for rank in range(4)]

    assert [use.pins for use in uses] == [(0, 1), (4, 5), (2, 3), (6, 7)]
    assert [use.cpus[0] for use in uses] == [0, 4, 0, 4]


def test_a_rank_takes_neighbours_where_nodes_are_more() -> None:
    """Two ranks on four nodes leave none idle."""
    share = CpuShare(tuple(Cpu(number, number, number // 2) for number in range(8)), 8)
    uses = [choose_cores(share, rank=rank, ranks=2) for rank in (0, 1)]

    assert [use.cpus for use in uses] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_more_ranks_than_cores_share_them_unpinned() -> None:
    uses = [choose_cores(_share(2), pin="on", rank=rank, ranks=3) for rank in range(3)]

    assert [use.threads for use in uses] == [1, 1, 1]
    assert [use.pins for use in uses] == [(), (), ()]


def test_ranks_share_the_quota() -> None:
    uses = [choose_cores(_two_sockets(quota=5.0), rank=rank, ranks=2) for rank in (0, 1)]

    assert [use.threads for use in uses] == [2, 2]


def test_one_rank_over_two_nodes_is_told_of_ranks() -> None:
    """Half of what it reads comes from the other socket."""
    use = choose_cores(_two_sockets())

    assert use.threads == 8
    assert "TENSOR_PARALLEL_SIZE=2" in use.remarks[0]


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 8, 10, 11), "0-2,8,10-11")]
)
def test_ranges_are_written_as_the_kernel_does(numbers: tuple[int, ...], text: str) -> None:
    assert ranges(numbers) == text
    assert numbers_of(text + "\n") == numbers


Machine = Callable[[dict[str, str]], Path]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Two sockets with SMT (2 cores and 4 CPUs each), and further files by path."""

    def build(files: dict[str, str]) -> Path:
        siblings = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
        usual = {
            "sys/devices/system/cpu/online": "0-7",
            "sys/devices/system/node/node0/cpulist": "0-1,4-5",
            "sys/devices/system/node/node1/cpulist": "2-3,6-7",
            **{
                f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text
                for cpu, text in siblings.items()
            },
        }
        for path, text in (usual | files).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text + "\n")
        return tmp_path

    return build


def test_topology_is_read(machine: Machine) -> None:
    share = read_share(root=machine({}), allowed=range(8))

    assert share.cpus[5] == Cpu(5, core=1, node=0)
    assert share.cpus[7] == Cpu(7, core=3, node=1)
    assert (share.num_cores, share.num_online, share.quota) == (4, 8, None)


def test_a_cpuset_is_a_part_of_the_machine(machine: Machine) -> None:
    """CPUs 1, 3, 5 and 7: two cores, one on each socket, with both siblings."""
    use = choose_cores(read_share(root=machine({}), allowed=(1, 3, 5, 7), asked=4.0))

    assert (use.threads, use.pins) == (2, (1, 3))


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2.5),
        (
            {
                "proc/self/cgroup": "0::/kubepods/pod1/engine",
                "sys/fs/cgroup/kubepods/pod1/cpu.max": "300000 100000",
                "sys/fs/cgroup/kubepods/pod1/engine/cpu.max": "max 100000",
            },
            3.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/a\n3:cpuset:/a\n2:cpu,cpuacct:/docker/a",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
        ({"proc/self/cgroup": "0::/"}, None),
        ({}, None),
    ],
    ids=["v2 max", "v2", "v2 parent", "v1 container", "v1 none", "no file", "no cgroup"],
)
def test_the_quota_is_read(machine: Machine, files: dict[str, str], quota: float | None) -> None:
    """Of either version, where the container is its own root and where it is not."""
    assert read_share(root=machine(files), allowed=(0,)).quota == quota


def test_a_machine_that_tells_nothing_is_plain(tmp_path: Path) -> None:
    """A sandbox may hide /sys: every CPU is then taken for a core."""
    share = read_share(root=tmp_path, allowed=(2, 3))

    assert share == CpuShare((Cpu(2, 2), Cpu(3, 3)), num_online=2)


def test_this_machine_can_be_read() -> None:
    """Whatever it is: it has a core, and a choice is a sentence."""
    use = choose_cores(read_share())

    assert use.threads >= 1
    assert use.sentence.startswith(f"{use.threads} thread")
