"""How many threads the engine computes with, and on which cores. Pure functions only.

`cores_reader` reads what the machine gives, `placing` does what is chosen here (docs/cpu.md).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

PinSetting = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Cpu:
    """A logical CPU that the process may run on."""

    number: int
    core: int
    """The lowest number among the CPUs of its physical core, whether they are allowed or not."""
    node: int = 0
    """Its NUMA node."""


@dataclass(frozen=True, slots=True)
class CpuShare:
    """What a process may use of the machine's CPUs."""

    cpus: tuple[Cpu, ...]
    """Those of its affinity, which a cpuset bounds; ascending, at least one."""
    num_online: int
    """CPUs of the whole machine."""
    quota: float | None = None
    """The cgroup's CPU quota, in CPUs; None without a quota."""
    asked: float | None = None
    """CPUs that its pod requested; None where that is unknown."""

    @property
    def num_cores(self) -> int:
        """Count the physical cores among its CPUs."""
        return len({cpu.core for cpu in self.cpus})

    @property
    def is_exclusive(self) -> bool:
        """Tell whether nobody else computes there.

        Kubernetes' static CPU manager gives a container as many CPUs as it asked for, and these to
        it alone. A cpuset of any other size is a pool that is shared.
        """
        is_cut_out = len(self.cpus) < self.num_online
        return is_cut_out and len(self.cpus) in {self.quota, self.asked}


@dataclass(frozen=True, slots=True)
class CoreUse:
    """How one rank computes."""

    threads: int
    reason: str
    """Where the number of threads comes from."""
    cpus: tuple[int, ...]
    """CPUs that the rank may run on."""
    pins: tuple[int, ...] = ()
    """One CPU for each thread, the step loop's first; empty where threads may move."""
    remarks: tuple[str, ...] = ()
    """What a person should know, in sentences."""

    @property
    def sentence(self) -> str:
        """Describe it in one sentence, for the log."""
        count = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        if self.pins:
            return f"{count}, {self.reason}, each pinned to a core (CPUs {ranges(self.pins)})"
        return f"{count}, {self.reason}, free to move among CPUs {ranges(self.cpus)}"


def choose_cores(
    share: CpuShare, *, threads: int = 0, pin: PinSetting = "auto", rank: int = 0, ranks: int = 1
) -> CoreUse:
    """Choose for one of several ranks; `threads` 0 takes what the rank was given.

    One thread for a physical core: a second one shares its arithmetic units. A quota is rounded
    down, because a thread too many has the whole process stopped in every period; what a pod asked
    for is rounded up, because no time is refused to it.
    """
    place = _place(share, rank, ranks)
    given, reason = _given(share, len(place.cores), ranks)
    if threads:
        reason = "as PACELINE_ENGINE_THREADS says"
    count = threads or given
    wants_pins = pin == "on" or (pin == "auto" and share.is_exclusive)
    can_pin = place.is_its_own and count <= len(place.cores)
    pins = place.cores[:count] if wants_pins and can_pin else ()
    remarks = [*_remarks(share, count, len(place.cores), ranks)]
    if pin == "on" and not pins:
        remarks.append(
            f"PACELINE_ENGINE_PIN_THREADS is on, but {count} threads of {_ranks(ranks)} have "
            f"{share.num_cores} cores: none is pinned."
        )
    return CoreUse(count, reason, place.cpus, pins, tuple(remarks))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one rank runs."""

    cpus: tuple[int, ...]
    """All of its NUMA nodes."""
    cores: tuple[int, ...]
    """One CPU of each physical core that the rank uses on its nodes."""
    is_its_own: bool
    """No other rank has a part in these cores."""


def _place(share: CpuShare, rank: int, ranks: int) -> _Place:
    """Keep a rank to one node, as far as there are nodes.

    Its threads touch its weights first, so these lie in the node's own memory. With more nodes than
    ranks a rank has several neighbours.
    """
    nodes = sorted({cpu.node for cpu in share.cpus})
    if ranks < len(nodes):
        mine = nodes[rank * len(nodes) // ranks : (rank + 1) * len(nodes) // ranks]
        place, sharers = 0, 1
    else:
        mine = [nodes[rank % len(nodes)]]
        place, sharers = rank // len(nodes), len(range(rank % len(nodes), ranks, len(nodes)))
    own = [cpu for cpu in share.cpus if cpu.node in mine]
    first = {cpu.core: cpu.number for cpu in reversed(own)}  # the lowest number of each core
    cores = sorted(first.values())
    is_its_own = sharers <= len(cores)
    part = [cores[place % len(cores)]]
    if is_its_own:
        part = cores[place * len(cores) // sharers : (place + 1) * len(cores) // sharers]
    return _Place(tuple(cpu.number for cpu in own), tuple(part), is_its_own=is_its_own)


def _given(share: CpuShare, cores: int, ranks: int) -> tuple[int, str]:
    """Return the number of threads of one rank, and what decided it."""
    whose = "the rank's" if ranks > 1 else "the"
    limits = [(cores, f"one for each of {whose} {cores} cores")]
    if cores == 1:
        limits = [(1, f"one for {whose} core")]
    if share.quota is not None:
        limits.append((int(share.quota / ranks), f"as the CPU quota is {share.quota:g}"))
    if share.asked is not None:
        limits.append(
            (math.ceil(share.asked) // ranks, f"as the pod asked for {share.asked:g} CPUs")
        )
    count, reason = min(limits, key=lambda limit: limit[0])
    return max(1, count), reason


def _remarks(share: CpuShare, count: int, cores: int, ranks: int) -> Iterator[str]:
    quota = None if share.quota is None else share.quota / ranks
    if quota is not None and quota < 1:
        yield (
            f"The CPU quota is {quota:.2g} of a core{' for each rank' if ranks > 1 else ''}: one "
            f"thread computes, and it is stopped for {1 - quota:.0%} of the time, so every step "
            f"takes {1 / quota:.2g} times as long as on a whole core."
        )
    most = cores if quota is None else min(cores, max(1, int(quota)))
    if count > most:
        yield (
            f"PACELINE_ENGINE_THREADS is {count}, but {'each rank' if ranks > 1 else 'the engine'} "
            f"was given {most} core{'' if most == 1 else 's'}: threads wait for each other, and "
            f"{most} would be faster."
        )
    nodes = len({cpu.node for cpu in share.cpus})
    if ranks == 1 and nodes > 1:
        yield (
            f"The cores lie on {nodes} NUMA nodes and one rank uses all of them, so that much of "
            f"what it reads is far away: PACELINE_ENGINE_TENSOR_PARALLEL_SIZE={nodes} gives each "
            "node a rank."
        )


def _ranks(count: int) -> str:
    return f"{count} rank{'' if count == 1 else 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as the kernel does: `0-3,8`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def numbers_of(text: str) -> tuple[int, ...]:
    """Read what `ranges` writes; empty of nothing."""
    found: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            found += range(int(first), int(last or first) + 1)
    return tuple(found)
