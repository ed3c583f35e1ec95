"""The tensors that a launch was given, and what is known of every byte of their storages."""

import mmap
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Flags = NDArray[np.bool_]
Addresses = NDArray[np.uint64]
Kind = Literal["bounds", "race", "overflow", "unwritten"]

_NO_RESERVE = 0x4000
"""Of Linux's mmap; the module names it only from Python 3.13 on."""
_ATOMIC, _MANY = -1, -2
"""In place of a program: atomics, of whomever, and several programs."""


class KernelFaultError(AssertionError):
    """A kernel does what a GPU does not forgive."""

    def __init__(self, kind: Kind, message: str) -> None:
        """Say what it is and where."""
        super().__init__(message)
        self.kind = kind


def sparse(*sizes: int, dtype: torch.dtype) -> Tensor:
    """Return zeros of any size: only pages that are touched take memory."""
    count = int(np.prod(sizes))
    zeros = _zeros(count * dtype.itemsize, np.dtype(np.uint8))
    return torch.from_numpy(zeros).view(dtype).view(sizes)


def _zeros(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    pages = mmap.mmap(-1, max(1, count * dtype.itemsize), flags=flags)
    return np.frombuffer(pages, dtype=dtype, count=count)


class Storage:
    """What is known of each byte of one storage: who touched it in this launch, and when."""

    def __init__(self, tensor: Tensor) -> None:
        """Know nothing of it; every byte counts as written."""
        storage = tensor.untyped_storage()
        self.base, self.num_bytes = storage.data_ptr(), storage.nbytes()
        self.written: Flags | None = None
        """Where it came from `torch.empty`."""
        self._kept = tensor  # its address is not given to another tensor
        self.forget_launch()

    def forget(self) -> None:
        """Count no byte as written."""
        self.written = _zeros(self.num_bytes, np.dtype(np.bool_))

    def forget_launch(self) -> None:
        """Nobody has touched anything."""
        self._writers, self._times, self._readers, self._read_times = (
            _zeros(self.num_bytes, np.dtype(np.int32)) for _ in range(4)
        )

    def bytes_of(self, addresses: Addresses, item_bytes: int) -> NDArray[np.int64]:
        """Give the places of all bytes of these elements."""
        first = (addresses - np.uint64(self.base)).astype(np.int64)
        places: NDArray[np.int64] = (first[:, None] + np.arange(item_bytes)).ravel()
        return places

    def read(self, places: NDArray[np.int64], program: "Program") -> tuple[Kind, str] | None:
        """Note that a program reads; return what is wrong with it."""
        if self.written is not None and not self.written[places].all():
            return "unwritten", "memory that nothing has written"
        writers, times = self._writers[places], self._times[places]
        if other := program.unordered(writers, times):
            return "race", f"what {other} writes"
        if (times[writers == program.number] == program.time).any():
            return "race", "what it wrote itself, with no barrier in between"
        readers = self._readers[places]
        alone = (readers == 0) | (readers == program.number)
        self._readers[places] = np.where(alone, program.number, _MANY)
        self._read_times[places] = program.time
        return None

    def write(
        self, places: NDArray[np.int64], program: "Program", *, alone: bool, atomic: bool
    ) -> tuple[Kind, str] | None:
        """Note that a program writes; return what is wrong with it.

        `alone`: one thread writes, so that a later write of the same thread follows this one.
        """
        if atomic and self.written is not None and not self.written[places].all():
            return "unwritten", "memory that nothing has written"
        writers, times = self._writers[places], self._times[places]
        if other := program.unordered(writers, times, but_atomics=atomic):
            return "race", f"what {other} writes as well"
        if other := program.unordered(self._readers[places], self._read_times[places]):
            return "race", f"what {other} reads"
        own = (writers == program.number) & (times == program.time)
        if not alone and not atomic and own.any():
            return "race", "what it wrote before, with no barrier in between"
        self._writers[places] = _ATOMIC if atomic else program.number
        self._times[places] = program.time
        if self.written is not None:
            self.written[places] = True
        return None


@dataclass(slots=True)
class Program:
    """One program of a launch, and what of the others is before it."""

    number: int = 0
    """From 1 on."""
    time: int = 1
    """Rises with each barrier, and with each program."""
    known: dict[int, int] = field(default_factory=dict)
    """Until when the work of others is done and seen, by their numbers."""
    is_last: bool = False
    """Whether what is accessed was updated by atomics of its own."""

    def unordered(
        self, programs: NDArray[np.int32], times: NDArray[np.int32], *, but_atomics: bool = False
    ) -> str | None:
        """Name one of the others whose work is not before this."""
        found = (programs != 0) & (programs != self.number)
        for other, until in self.known.items():
            found &= (programs != other) | (times >= until)
        if but_atomics or self.is_last:
            found &= programs != _ATOMIC
        if not found.any():
            return None
        other = int(programs[found][0])
        names = {_MANY: "other programs", _ATOMIC: "an atomic"}
        return names.get(other, f"program {other - 1}")


@dataclass(frozen=True, slots=True)
class Given:
    """One tensor of a launch."""

    name: str
    base: int
    item_bytes: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    storage: Storage

    def holds(self, addresses: Addresses, item_bytes: int) -> Flags:
        """Tell which addresses are those of elements, with all of their bytes."""
        first = addresses.astype(np.int64) - self.base
        if item_bytes == self.item_bytes:
            return self._holds(first)
        last = first + item_bytes - 1
        begin = first // self.item_bytes * self.item_bytes
        return self._holds(begin) & self._holds(last // self.item_bytes * self.item_bytes)

    def _holds(self, offsets: NDArray[np.int64]) -> Flags:
        if 0 in self.sizes:
            return np.zeros(offsets.shape, dtype=np.bool_)
        rest = offsets // self.item_bytes
        is_inside = (offsets >= 0) & (offsets % self.item_bytes == 0)
        dims = sorted(zip(self.strides, self.sizes, strict=True), reverse=True)
        for stride, size in dims:
            if size == 1 or stride == 0:
                continue
            place, rest = np.divmod(rest, stride)
            is_inside &= place < size
        all_inside: Flags = is_inside & (rest == 0)
        return all_inside

    def __str__(self) -> str:
        """Name it in a fault."""
        layout = f"{list(self.sizes)} with strides {list(self.strides)}"
        return f"{self.name} {layout}"


def elements_of(known: Flags, tensor: Tensor) -> Flags:
    """View the bytes of a tensor's elements among those of its storage."""
    item_bytes = tensor.element_size()
    start = tensor.storage_offset() * item_bytes
    strides = tuple(stride * item_bytes for stride in tensor.stride())
    shape = (*tensor.shape, item_bytes)
    if 0 in shape:
        return np.ones(0, dtype=np.bool_)
    return np.lib.stride_tricks.as_strided(known[start:], shape, (*strides, 1))
