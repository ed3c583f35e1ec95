"""Messages of int64 numbers from rank 0 to every other rank, by a ring in shared memory.

All ranks are processes of one machine. A message is one number, its length, and its numbers; it
lies in as many slots of the ring as it needs. For each reader two semaphores count the slots that
are filled and those that are free, so a writer ahead of all readers never waits, and a reader with
nothing to read sleeps. Nothing is pickled, and nothing goes through a socket.
"""

import ctypes
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Semaphore
from typing import Any

import numpy as np

from paceline_engine.core.step_tensors import Int64s

SLOT_NUMBERS = 8192
"""64 KiB: a step of decodes takes one, a prompt of 8,192 tokens two or three."""
NUM_SLOTS = 16
_LOOK_S = 1.0
"""Seconds between a waiting process's checks that the other side is still alive."""

Check = Callable[[], None]
"""Raises when waiting on is useless, because the other side has died."""


class RingReader:
    """Reads each message once, in order; goes to its process as an argument."""

    def __init__(self, memory: Any, filled: Semaphore, free: Semaphore, num_slots: int) -> None:
        self._memory = memory
        self._filled = filled
        self._free = free
        self._num_slots = num_slots
        self._turn = 0

    def get(self, check: Check) -> Int64s:
        """Wait for a message and return a copy of it; `check` is called while nothing comes."""
        slots = _slots(self._memory, self._num_slots)
        slot_numbers = slots.shape[1]
        self._wait(check)
        length = int(slots[self._turn, 0])
        message = np.empty(1 + length, dtype=np.int64)
        for first in range(0, len(message), slot_numbers):
            if first:
                self._wait(check)
            part = message[first : first + slot_numbers]
            part[:] = slots[self._turn, : len(part)]
            self._free.release()
            self._turn = (self._turn + 1) % self._num_slots
        return message[1:]

    def _wait(self, check: Check) -> None:
        while not self._filled.acquire(timeout=_LOOK_S):
            check()


class MessageRing:
    """Takes messages for all readers."""

    def __init__(
        self, num_readers: int, *, slot_numbers: int = SLOT_NUMBERS, num_slots: int = NUM_SLOTS
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._memory = spawn.RawArray(ctypes.c_int64, slot_numbers * num_slots)
        self._slots = _slots(self._memory, num_slots)
        self._filled = [spawn.Semaphore(0) for _ in range(num_readers)]
        self._free = [spawn.Semaphore(num_slots) for _ in range(num_readers)]
        self._turn = 0

    @property
    def readers(self) -> list[RingReader]:
        """Return one for each process; each is to be used once."""
        return [
            RingReader(self._memory, filled, free, len(self._slots))
            for filled, free in zip(self._filled, self._free, strict=True)
        ]

    def put(self, arrays: Sequence[Int64s], check: Check) -> None:
        """Write the arrays as one message; `check` is called while a reader leaves no room."""
        message = np.concatenate(([0], *arrays), dtype=np.int64)
        message[0] = len(message) - 1
        num_slots, slot_numbers = self._slots.shape
        for first in range(0, len(message), slot_numbers):
            for free in self._free:
                while not free.acquire(timeout=_LOOK_S):
                    check()
            part = message[first : first + slot_numbers]
            self._slots[self._turn, : len(part)] = part
            self._turn = (self._turn + 1) % num_slots
            for filled in self._filled:
                filled.release()


def _slots(memory: Any, num_slots: int) -> Int64s:  # [num_slots, slot_numbers]
    return np.frombuffer(memory, dtype=np.int64).reshape(num_slots, -1)
