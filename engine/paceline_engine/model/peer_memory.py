"""Sums over the ranks of one machine through memory that each of them reads of the others.

A rank puts what it has into its buffer, waits until all have, and adds up what it reads of theirs:
one launch of torch's (`torch.ops.symm_mem`), where a library's protocol costs a small message more
than its bytes. The last thing that launch does is wait until all have read, so the next launch of a
rank's stream may write its buffer again: one buffer is enough, and nothing may write it from
another stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Way = Literal["one_shot", "two_shot", "library"]
"""How a message is summed: all read all, each adds up a part and reads the others', or NCCL."""
PeerWay = Literal["one_shot", "two_shot"]

WORTH_IT = 0.95
"""Peer memory is used below this share of NCCL's time: a smaller gain is noise."""
_SIZES = (2, 4, 8)
"""Group sizes for which torch's kernels add up in the same order on every rank."""
_DTYPES = (torch.bfloat16, torch.float32)
_ALIGNMENT = 16
"""Bytes of one access; torch has kernels for less, which take as many accesses more."""


class PeerOps(Protocol):
    """Sums of what all ranks have in the same place of their buffers. Every rank calls it."""

    def one_shot(self, place: Tensor, out: Tensor) -> None:
        """Write the sum to `out`, by reading every rank's part."""
        ...

    def two_shot(self, place: Tensor, out: Tensor) -> None:
        """Write the sum to `out`, by reading what each rank has added up of it."""
        ...


class TorchPeerOps:
    """Implements `PeerOps` with torch's symmetric memory.

    Not with `one_shot_all_reduce_copy`, which copies into the buffer itself: up to torch 2.15 its
    threads do not meet between that copy and the signal to the other ranks.
    """

    def __init__(self, group_name: str) -> None:
        self._group_name = group_name

    def one_shot(self, place: Tensor, out: Tensor) -> None:
        """See `PeerOps`."""
        torch.ops.symm_mem.one_shot_all_reduce_out(place, "sum", self._group_name, out)

    def two_shot(self, place: Tensor, out: Tensor) -> None:
        """See `PeerOps`."""
        torch.ops.symm_mem.two_shot_all_reduce_out(place, "sum", self._group_name, out)


def cannot_share(num_ranks: int, row_bytes: int, dtype: torch.dtype) -> str | None:
    """Say why rows of so many bytes cannot be summed through peer memory; None where they can."""
    if num_ranks not in _SIZES:
        return f"{num_ranks} ranks, not 2, 4 or 8"
    if dtype not in _DTYPES:
        return f"{dtype} is neither bfloat16 nor float32"
    if row_bytes % _ALIGNMENT:
        return f"a row of {row_bytes} bytes is no multiple of {_ALIGNMENT}"
    return None


def ways_of(num_ranks: int) -> tuple[PeerWay, ...]:
    """Return the ways that can be the faster one.

    Of a message of N bytes, one shot reads (n - 1) N of n ranks, two shots 2 (n - 1) / n N, and
    wait for all once more: between two ranks as many bytes, so they cannot gain.
    """
    two_shots_read_less = 2 / num_ranks < 1
    return ("one_shot", "two_shot") if two_shots_read_less else ("one_shot",)


@dataclass(frozen=True, slots=True)
class Ways:
    """The way that a message takes, by its bytes."""

    up_to: tuple[tuple[int, Way], ...] = ()
    """Ascending; a message takes that of the first entry that is not smaller."""

    def of(self, num_bytes: int) -> Way:
        """Return the way of one message."""
        for most, way in self.up_to:
            if num_bytes <= most:
                return way
        return "library"

    @property
    def sentence(self) -> str:
        """Describe the choice, with adjacent sizes of the same way merged."""
        spans: list[tuple[int, Way]] = []
        for most, way in self.up_to:
            if spans and spans[-1][1] == way:
                spans.pop()
            spans.append((most, way))
        named = {"one_shot": "one shot", "two_shot": "two shots", "library": "NCCL"}
        parts = [f"{named[way]} up to {most / 1024:,.0f} KiB" for most, way in spans]
        if not parts or spans[-1][1] == "library":
            parts[-1:] = []
        return ", ".join((*parts, "NCCL beyond" if parts else "NCCL always"))


def fastest(times: Mapping[int, Mapping[Way, float]]) -> Ways:
    """Choose for each size, in bytes, the way that took least; peers must clearly beat NCCL.

    A size stands for all messages above the next smaller one: at its upper end, where bytes cost
    the most beside what does not depend on them.
    """
    chosen: list[tuple[int, Way]] = []
    for size in sorted(times):
        of_size = times[size]
        allowed = of_size["library"] * WORTH_IT
        way: Way = min(of_size, key=of_size.__getitem__)
        chosen.append((size, way if of_size[way] <= allowed else "library"))
    return Ways(tuple(chosen))


class PeerMemory:
    """A rank's buffer, which the others read."""

    def __init__(
        self,
        buffer: Tensor,  # [numbers]
        ops: PeerOps,
        ways: Ways,
    ) -> None:
        self.ways = ways
        self._buffer = buffer
        self._ops = ops
        self._places: dict[tuple[int, ...], Tensor] = {}

    def place(
        self,
        shape: tuple[int, ...],  # rows, columns
        dtype: torch.dtype,
    ) -> Tensor | None:  # as asked
        """Return where to leave what is to be summed, without a copy; None where NCCL sums it.

        It may be written until the next sum is asked for, and is not read after it.
        """
        place = self._places.get(shape)
        if place is None:
            numbers = torch.Size(shape).numel()
            if not 0 < numbers <= self._buffer.numel():
                return None
            place = self._places[shape] = self._buffer[:numbers].view(shape)
        if dtype != place.dtype or self.ways.of(place.nbytes) == "library":
            return None
        return place

    def sum_(self, x: Tensor) -> Tensor | None:
        """Return the sum of what every rank calls it with; None, and nothing done, where NCCL does.

        In place, but where `x` is the `place` of its shape: then in a new tensor, because the next
        message comes to the same place.
        """
        place = self.place(tuple(x.shape), x.dtype)
        if place is None:
            return None
        if x is place:
            out = torch.empty_like(x)
        elif x.is_contiguous():
            place.copy_(x)
            out = x
        else:
            return None
        if self.ways.of(place.nbytes) == "one_shot":
            self._ops.one_shot(place, out)
        else:
            self._ops.two_shot(place, out)
        return out
