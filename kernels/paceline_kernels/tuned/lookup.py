"""The blocks that a launcher uses: found once for each class of calls, then one dict away."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from paceline_kernels.tuned.spaces import Blocks
from paceline_kernels.tuned.table import NO_GPU, BadTable, Gpu, Table, read_table

PATH: Final = Path(__file__).with_name("table.jsonl")
GpuOf = Callable[[torch.device], Gpu]


class Lookup:
    """Finds blocks in a table, and remembers them. Nothing is measured here."""

    def __init__(self, table: Callable[[], Table], gpu_of: GpuOf) -> None:
        self._table = table
        self._gpu_of = gpu_of
        self._found: dict[object, Blocks] = {}

    def __call__(self, kernel: str, device: torch.device, **shape: int | str) -> Blocks:
        """Give the blocks for a class of calls on a device.

        Raises BadTable where the table cannot be read, or has no row for them.
        """
        key = (kernel, device, *shape.values())
        blocks = self._found.get(key)
        if blocks is None:
            row = self._table().row_for(self._gpu_of(device), kernel, shape)
            blocks = self._found[key] = row.blocks
        return blocks

    @contextmanager
    def as_if(self, table: Table, gpu: Gpu) -> Iterator[None]:
        """Answer from this table as on this GPU: for who measures, or compiles for another."""
        before = self._table, self._gpu_of, self._found
        self._table, self._gpu_of, self._found = lambda: table, lambda _device: gpu, {}
        try:
            yield
        finally:
            self._table, self._gpu_of, self._found = before


@functools.cache
def shipped_table() -> Table:
    """Read the table that lies beside this module. Raises BadTable, which names the file."""
    try:
        return read_table(PATH.read_text(encoding="utf-8").splitlines())
    except BadTable as error:
        raise BadTable(f"{PATH}: {error}") from error


def gpu_of(device: torch.device) -> Gpu:
    """Ask torch what a device is."""
    if device.type != "cuda":
        return NO_GPU
    properties = torch.cuda.get_device_properties(device)
    return Gpu(properties.name, (properties.major, properties.minor))


blocks_of = Lookup(shipped_table, gpu_of)
"""The launchers' own."""
