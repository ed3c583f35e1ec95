"""Tensors on the device, and the memory under them."""

from typing import Any, Self

import torch
from torch import Tensor

from paceline_testing.async_device.work import Queue, Run


class Memory:
    """What one allocation took; all its views hold it."""

    def __init__(self, whole: Tensor, queue: Queue, freed: Any) -> None:
        """`freed` is told when nobody holds it any more."""
        self.whole = whole
        self.queue = queue
        """Of the stream that took it."""
        self.used_on: list[Queue] = []
        """Of the streams that `record_stream` has named."""
        self._freed = freed

    def __del__(self) -> None:
        """Give it back to the allocator."""
        self._freed(self)


class DeviceTensor(Tensor):
    """Says that it is on the device; its numbers, as far as they are computed, lie on the host."""

    numbers: Tensor
    memory: Memory

    def __new__(cls, real: Tensor, memory: Memory) -> Self:
        """Wrap a tensor of the host's."""
        with torch.inference_mode(mode=False):  # what inference takes can be written to by others
            self = torch.Tensor._make_wrapper_subclass(
                cls,
                real.shape,
                strides=real.stride(),
                storage_offset=real.storage_offset(),
                dtype=real.dtype,
                device=torch.device("cuda", 0),
            )
        self.numbers, self.memory = real, memory
        return self

    def __init__(self, real: Tensor, memory: Memory) -> None:
        """All is done by then."""

    def tolist(self) -> Any:
        """Wait for the numbers."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        """Refuse: only the device's own mode computes."""
        raise AssertionError(f"{func} outside of the device's `visible()`")


def spoil(tensor: Tensor) -> None:
    """Leave garbage in memory, as whoever had it last."""
    with torch.inference_mode():
        if tensor.is_floating_point():
            tensor.view(_CODES_OF.get(tensor.dtype, tensor.dtype)).fill_(_garbage_of(tensor.dtype))
        elif tensor.dtype == torch.bool:
            tensor.logical_not_()
        else:
            tensor.fill_(77)


_CODES_OF = {torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}


def _garbage_of(dtype: torch.dtype) -> float:
    return 0x7F if dtype in _CODES_OF else float("nan")


def spoiling(tensor: Tensor) -> Run:
    """Return work that leaves garbage there."""
    return lambda: spoil(tensor)
