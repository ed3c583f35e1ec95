"""Reads the memory of a GPU: what the driver has left, and what torch's allocator has taken."""

import gc
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Reading:
    """A GPU's memory at one moment, in bytes."""

    total_bytes: int
    free_bytes: int
    """Free memory as the driver reports it: what other processes hold is not free."""
    taken_bytes: int
    """Memory that torch's allocator has reserved from the driver, in use or not."""
    most_taken_bytes: int
    """The peak of `taken_bytes` since the last `settle`."""


class MemoryGauge(Protocol):
    """Reads the memory of one device."""

    def settle(self) -> None:
        """Return unused memory to the driver, and reset `most_taken_bytes`."""
        ...

    def read(self) -> Reading:
        """Wait for the device, and read."""
        ...


class CudaGauge:
    """Asks the driver and torch. Implements `MemoryGauge`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def settle(self) -> None:
        """See `MemoryGauge`."""
        gc.collect()  # runners and their graphs refer to each other
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> Reading:
        """See `MemoryGauge`."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        taken = torch.cuda.memory_reserved(self._device)
        return Reading(total, free, taken, torch.cuda.max_memory_reserved(self._device))
