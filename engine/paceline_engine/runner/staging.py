"""Arrays of a step on their way to the device: side by side in one copy, out of pinned memory.

The memory is taken once. There are two buffers on the host: while the device still reads one, the
host writes the other, and waits only if the device is two copies behind. On the device one buffer
is enough: its stream copies the next step's numbers there once the step before has read its own.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.step_tensors import Int64s


class StepStaging:
    """Takes arrays of int64 to the device, up to `room` numbers at a time."""

    def __init__(self, room: int, device: torch.device) -> None:
        self._device = device
        self._is_gpu = device.type == "cuda"
        self._turn = 0
        self._pinned = [
            torch.empty(room, dtype=torch.int64, pin_memory=self._is_gpu) for _ in range(2)
        ]
        self._arrays = [pinned.numpy() for pinned in self._pinned]
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._on_device = torch.zeros(room, dtype=torch.int64, device=device)

    @property
    def room(self) -> int:
        """Numbers that one copy takes."""
        return len(self._on_device)

    def put(self, arrays: Sequence[Int64s]) -> list[Tensor]:
        """Copy the arrays in one go; return where they lie on the device until the next copy."""
        bounds = np.cumsum([0, *map(len, arrays)]).tolist()
        if bounds[-1] > self.room:
            raise ValueError(f"a step must stage at most {self.room} numbers, got {bounds[-1]}")
        self._turn = 1 - self._turn
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        np.concatenate(arrays, out=self._arrays[self._turn][: bounds[-1]])
        staged = self._on_device[: bounds[-1]]
        staged.copy_(self._pinned[self._turn][: bounds[-1]], non_blocking=True)
        if self._is_gpu:
            event = copied or torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
            self._copied[self._turn] = event
        return self.places([len(array) for array in arrays])

    def places(self, lengths: Sequence[int]) -> list[Tensor]:
        """Return where arrays of these lengths lie on the device, at every copy."""
        bounds = accumulate(lengths, initial=0)
        return [self._on_device[first:end] for first, end in pairwise(bounds)]
