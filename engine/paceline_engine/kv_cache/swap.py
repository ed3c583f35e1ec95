"""Blocks of preempted requests in host memory: their owners, and the copies to be made.

Copies are ordered here and run by whoever holds the memory, in this order, before the step: a slot
or a block that was given up in the same step may be the next copy's target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from paceline_engine.core.request import Request

# Some 1.3 ms on PCIe at 50 GB/s: longer than the host takes to launch the gathers of the next.
STAGING_BYTES = 64 << 20


def num_staged(num_slots: int, block_bytes: int, staging_bytes: int = STAGING_BYTES) -> int:
    """Return how many blocks are on their way together on a GPU, which has a buffer for them."""
    return min(num_slots, max(1, staging_bytes // block_bytes))


def staged_bytes(swap_bytes: int, block_bytes: int) -> int:
    """Return what that buffer takes where host memory of `swap_bytes` holds swapped blocks."""
    return num_staged(swap_bytes // block_bytes, block_bytes) * block_bytes


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block's keys and values, of every layer, on their way."""

    block_id: int
    """On the device."""
    slot: int
    """In host memory."""
    is_out: bool
    """From the device to the host."""


class Swapper(Protocol):
    """The host memory that blocks are copied to, and what a copy costs."""

    @property
    def num_slots(self) -> int:
        """Blocks that the host memory holds."""
        ...

    def ms(self, num_blocks: int) -> float:
        """Time that copying so many blocks one way together takes, as measured so far."""
        ...

    def run(self, copies: Sequence[BlockCopy]) -> None:
        """Copy, one after the other."""
        ...


class SwapSpace:
    """Which slots of the host memory hold whose blocks."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))[::-1]
        self.copies: list[BlockCopy] = []
        """Copies that were ordered and that `take_copies` has not returned yet."""
        self.num_slots = num_slots

    @property
    def num_free(self) -> int:
        """Slots that hold nothing."""
        return len(self._free)

    @property
    def is_in_use(self) -> bool:
        """Whether any slot holds a request's blocks."""
        return self.num_free < self.num_slots

    def save(self, request: Request, block_size: int) -> None:
        """Copy out what the request has computed. The caller has checked `num_free`."""
        num_blocks = -(-request.num_computed // block_size)
        request.swap_slots = [self._free.pop() for _ in range(num_blocks)]
        request.num_swapped = request.num_computed
        self.copies += [
            BlockCopy(block_id, slot, is_out=True)
            for block_id, slot in zip(
                request.block_ids[:num_blocks], request.swap_slots, strict=True
            )
        ]

    def restore(self, request: Request, first: int) -> None:
        """Copy back into the request's blocks from the `first` on, which nobody shares."""
        self.copies += [
            BlockCopy(request.block_ids[index], request.swap_slots[index], is_out=False)
            for index in range(first, len(request.swap_slots))
        ]
        self.release(request)

    def release(self, request: Request) -> None:
        """Forget what was saved of a request."""
        self._free += request.swap_slots
        request.swap_slots = []
        request.num_swapped = 0

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """Hand over what is to be copied before the next step."""
        taken = tuple(self.copies)
        self.copies.clear()
        return taken
