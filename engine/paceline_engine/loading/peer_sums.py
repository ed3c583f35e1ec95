"""Sets up sums through peer memory at the start: takes it, times it beside NCCL, and says so."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline_engine.model.group import Group
from paceline_engine.model.peer_memory import (
    PeerMemory,
    PeerOps,
    TorchPeerOps,
    Way,
    Ways,
    cannot_share,
    fastest,
    ways_of,
)
from paceline_engine.runner.graph_capture import CudaGraphCapture

_SUMS = 20
"""Sums in each timed replay: so many that starting the replay is a small part of the time."""
_ROUNDS = 5

Made = TypeVar("Made")

_log = logging.getLogger(__name__)


class NoPeerMemoryError(Exception):
    """Peers cannot share memory; the message says why."""


class PeerSource(Protocol):
    """Where memory that peers read comes from."""

    def require(self, device: torch.device, num_ranks: int) -> None:
        """Raise `NoPeerMemoryError` where this rank can tell by itself that there is none."""
        ...

    def allocate(self, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Take this rank's buffer. Raises `NoPeerMemoryError`."""
        ...

    def meet(self, buffer: Tensor) -> PeerOps:
        """Map the buffers of all ranks; every rank calls it. Raises `NoPeerMemoryError`."""
        ...


class TorchPeerSource:
    """Implements `PeerSource` with torch's symmetric memory, over NVLink."""

    def require(self, device: torch.device, num_ranks: int) -> None:
        """See `PeerSource`.

        The ranks signal by atomics on each other's memory, which GPUs have over NVLink alone.
        """
        if device.type != "cuda":
            raise NoPeerMemoryError(f"ranks run on a {device.type.upper()}")
        try:
            joined = _nvlinks()
        except (ImportError, AttributeError, RuntimeError) as error:
            raise NoPeerMemoryError(f"torch cannot tell of NVLink ({error})") from error
        apart = [
            (one, other)
            for one in range(num_ranks)
            for other in range(num_ranks)
            if one != other and not joined[one][other]
        ]
        if apart:
            one, other = apart[0]
            raise NoPeerMemoryError(f"no NVLink joins GPU {one} and GPU {other}")

    def allocate(self, numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """See `PeerSource`."""
        try:
            import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415 - absent where torch is built without it

            return symmetric.empty(numbers, dtype=dtype, device=device)
        except (ImportError, RuntimeError) as error:
            raise NoPeerMemoryError(f"torch gives no symmetric memory ({error})") from error

    def meet(self, buffer: Tensor) -> PeerOps:
        """See `PeerSource`."""
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415 - as above

        name = dist.group.WORLD.group_name  # type: ignore[union-attr] # the ranks have met
        try:
            symmetric.rendezvous(buffer, name)
        except RuntimeError as error:
            raise NoPeerMemoryError(f"the ranks' memory cannot be mapped ({error})") from error
        return TorchPeerOps(name)


def _nvlinks() -> list[list[int]]:
    """Return how many links join each two of the visible GPUs, by torch's own look."""
    from torch._C import _autograd, _distributed_c10d  # noqa: PLC0415 - private: they may move

    # torch's types leave it out, and it has no public name.
    look = _distributed_c10d._detect_dma_connectivity  # type: ignore[attr-defined] # noqa: SLF001
    matrix: list[list[int]] = look(_autograd.DeviceType.CUDA, "nvlink").matrix
    return matrix


SecondsOf = Callable[[Callable[[], object]], list[float]]
"""Runs what every rank runs at the same time; gives what each round took."""


@dataclass(frozen=True, slots=True)
class GraphTimer:
    """Implements `SecondsOf` by events around a replay, or around launches without graphs."""

    device: torch.device
    in_graph: bool

    def __call__(self, one: Callable[[], object]) -> list[float]:
        """See `SecondsOf`."""

        def several() -> None:
            for _ in range(_SUMS):
                one()

        run = CudaGraphCapture(self.device).capture(several) if self.in_graph else several
        run()  # warm-up: allocations and choices that happen once
        seconds: list[float] = []
        for _ in range(_ROUNDS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            seconds.append(begin.elapsed_time(end) / 1e3 / _SUMS)
        return seconds


@dataclass(frozen=True, slots=True)
class WidestSum:
    """The widest message that goes through peer memory: a full batch of decodes."""

    rows: int
    hidden: int
    dtype: torch.dtype
    device: torch.device

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return self.hidden * self.dtype.itemsize

    @property
    def sizes(self) -> list[int]:
        """Return the numbers of rows that are timed: 1, 2, 4 and so on, and all."""
        return [*(1 << power for power in range((self.rows - 1).bit_length())), self.rows]


@torch.inference_mode()
def share_memory(
    group: Group, widest: WidestSum, source: PeerSource, seconds_of: SecondsOf
) -> None:
    """Let the group sum through peer memory what is faster so, up to the widest message.

    Every rank calls it. What it takes of the device's memory stays taken.
    """
    if group.size == 1:
        return
    try:
        memory, ops, times = timed_ways(group, widest, source, seconds_of)
    except NoPeerMemoryError as why:
        if widest.device.type == "cuda":
            _log_on_rank_0(group, f"ranks add up by NCCL alone: {why}")
        return
    ways = fastest(times)
    if any(way != "library" for _, way in ways.up_to):
        group.peers = PeerMemory(memory, ops, ways)
    measured = "; ".join(
        f"{size / 1024:,.0f} KiB: "
        + ", ".join(f"{way} {1e6 * seconds:.1f}" for way, seconds in of_size.items())
        for size, of_size in times.items()
    )
    _log_on_rank_0(group, f"ranks add up by {ways.sentence}; microseconds of {measured}")


def timed_ways(
    group: Group, widest: WidestSum, source: PeerSource, seconds_of: SecondsOf
) -> tuple[Tensor, PeerOps, dict[int, dict[Way, float]]]:
    """Take the memory, and time each way by the bytes of a message; every rank calls it.

    Raises `NoPeerMemoryError`, in all ranks, where one of them has none.
    """
    memory = _agreed(group, lambda: _taken(group.size, widest, source))
    ops = _agreed(group, lambda: source.meet(memory))
    times = {
        rows * widest.row_bytes: _times(group, memory, ops, (rows, widest.hidden), seconds_of)
        for rows in widest.sizes
    }
    return memory, ops, times


def _log_on_rank_0(group: Group, sentence: str) -> None:
    if group.rank == 0:
        _log.info("%s", sentence)


def _taken(num_ranks: int, widest: WidestSum, source: PeerSource) -> Tensor:
    if (why := cannot_share(num_ranks, widest.row_bytes, widest.dtype)) is not None:
        raise NoPeerMemoryError(why)
    source.require(widest.device, num_ranks)
    return source.allocate(widest.rows * widest.hidden, widest.dtype, widest.device)


def _agreed(group: Group, make: Callable[[], Made]) -> Made:
    """Make something in every rank or in none: a rank that went on alone would wait for ever."""
    made, why = None, None
    try:
        made = make()
    except NoPeerMemoryError as error:
        why = error
    has_worked = group.least(int(why is None))
    if why is not None:
        raise why
    if not has_worked or made is None:
        raise NoPeerMemoryError("another rank has none")
    return made


def _times(
    group: Group, memory: Tensor, ops: PeerOps, shape: tuple[int, int], seconds_of: SecondsOf
) -> dict[Way, float]:
    """Time each way, peer sums with the copy into the buffer, which a product may leave out.

    The slowest rank's time counts, so that all ranks choose the same.
    """
    x = torch.zeros(shape, dtype=memory.dtype, device=memory.device)

    def by(way: Way) -> Callable[[], object]:
        if way == "library":
            return lambda: dist.all_reduce(x)
        peers = PeerMemory(memory, ops, Ways(((x.nbytes, way),)))
        return lambda: peers.sum_(x)

    ways: tuple[Way, ...] = ("library", *ways_of(group.size))
    return {way: _slowest(group, median(seconds_of(by(way)))) for way in ways}


def _slowest(group: Group, seconds: float) -> float:
    return -group.least(-round(1e9 * seconds)) / 1e9
