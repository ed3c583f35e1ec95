"""Memory in pages of 2 MiB: scattered reads of a large cache then miss the page tables less."""

import ctypes
import math
import mmap
import os
import sys
from collections.abc import Callable, Iterable
from threading import Thread, get_native_id, main_thread

import torch
from torch import Tensor

_PAGE_BYTES = 2 << 20
_PIECE_BYTES = 16 * _PAGE_BYTES
_LOWEST_PRIORITY = 19
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python does not name


def prefer_huge_pages(tensor: Tensor) -> bool:
    """Ask the kernel for huge pages, before the tensor is first written; whether it agreed."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux
        return False
    start = -(-tensor.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
    end = (tensor.data_ptr() + tensor.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    return end > start and _advise(start, end - start, mmap.MADV_HUGEPAGE)


def fresh_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in huge pages, which take memory when they are first touched."""
    num_bytes = math.prod(shape) * dtype.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = torch.frombuffer(
        mmap.mmap(-1, num_bytes + _PAGE_BYTES, flags=flags), dtype=torch.uint8
    )
    start = -memory.data_ptr() % _PAGE_BYTES
    tensor = memory[start : start + num_bytes].view(dtype).view(shape)
    prefer_huge_pages(tensor)
    return tensor


def take_memory(fresh: Iterable[Tensor], begin: Callable[[], None]) -> Thread:
    """Touch all of `fresh_zeros` in a thread, which calls `begin` first; they may be in use.

    Memory that is not there is then missed right after the start, not in some later hour. Before
    Linux 5.14 nothing is done.
    """
    # The tensor is kept beside its place, so that its memory stays.
    spans = [(tensor.data_ptr(), tensor.nbytes, tensor) for tensor in fresh]

    def take() -> None:
        # The threads that compute wait for each other, so none of them may wait for this one.
        if sys.platform == "linux":  # elsewhere a thread has no priority of its own
            os.setpriority(os.PRIO_PROCESS, get_native_id(), _LOWEST_PRIORITY)
        begin()
        for start, num_bytes, _ in spans:
            end = start + num_bytes
            for at in range(start, end, _PIECE_BYTES):
                if not main_thread().is_alive():
                    return
                # It faults pages in as a write would, but writes nothing: no race with who uses it.
                if not _advise(at, min(_PIECE_BYTES, end - at), _POPULATE_WRITE):
                    return

    # Not a daemon: when the process ends, a daemon is unwound wherever it is. This one may then be
    # in torch's code, which frees a tensor: unwinding that aborts the process.
    thread = Thread(target=take, name="paceline-memory")
    thread.start()
    return thread


def _advise(start: int, length: int, advice: int) -> bool:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(advise(start, length, advice) == 0)
