"""Looks up a launcher's block sizes: once for each class of calls, then from a dict."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from paceline_kernels.tuned.rows import ROWS
from paceline_kernels.tuned.spaces import Blocks
from paceline_kernels.tuned.table import NO_GPU, Gpu, Table

SHIPPED = Table(ROWS)
GpuOf = Callable[[torch.device], Gpu]


class Lookup:
    """Finds blocks in a table, and remembers them. Nothing is measured here."""

    def __init__(self, table: Table, gpu_of: GpuOf) -> None:
        self._table = table
        self._gpu_of = gpu_of
        self._found: dict[object, Blocks] = {}
        self.generation = 0
        """Counts replacements of the table: values derived from an earlier table are stale."""
        self._multiprocessors: dict[torch.device, int] = {}
        self._capabilities: dict[torch.device, tuple[int, int]] = {}

    def __call__(self, kernel: str, device: torch.device, **shape: int | str) -> Blocks:
        """Give the blocks for a class of calls on a device.

        Raises NoBlocksError where the table has no row for them.
        """
        key = (kernel, device, *shape.values())
        blocks = self._found.get(key)
        if blocks is None:
            row = self._table.row_for(self._gpu_of(device), kernel, shape)
            blocks = self._found[key] = row.blocks
        return blocks

    def multiprocessors(self, device: torch.device) -> int:
        """Count the multiprocessors of a device."""
        found = self._multiprocessors.get(device)
        if found is None:
            found = self._multiprocessors[device] = self._gpu_of(device).multiprocessors
        return found

    def capability(self, device: torch.device) -> tuple[int, int]:
        """Return the compute capability of a device."""
        found = self._capabilities.get(device)
        if found is None:
            found = self._capabilities[device] = self._gpu_of(device).capability
        return found

    @contextmanager
    def as_if(self, table: Table, gpu: Gpu) -> Iterator[None]:
        """Answer from this table as on this GPU: for who measures, or compiles for another."""
        before = self._table, self._gpu_of, self._found, self._multiprocessors
        self._table, self._gpu_of, self._found = table, lambda _device: gpu, {}
        self._multiprocessors, was = {}, self._capabilities
        self._capabilities = {}
        self.generation += 1
        try:
            yield
        finally:
            self._table, self._gpu_of, self._found, self._multiprocessors = before
            self._capabilities = was
            self.generation += 1


def gpu_of(device: torch.device) -> Gpu:
    """Ask torch what a device is."""
    if device.type != "cuda":
        return NO_GPU
    properties = torch.cuda.get_device_properties(device)
    capability = properties.major, properties.minor
    return Gpu(properties.name, capability, properties.multi_processor_count)


blocks_of = Lookup(SHIPPED, gpu_of)
"""The launchers' own."""
