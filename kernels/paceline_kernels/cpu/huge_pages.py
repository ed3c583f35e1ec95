"""Memory in pages of 2 MiB: scattered reads of a large cache then miss the page tables less."""

import ctypes
import mmap

from torch import Tensor

_PAGE_BYTES = 2 << 20


def prefer_huge_pages(tensor: Tensor) -> bool:
    """Ask the kernel for huge pages, before the tensor is first written; whether it agreed."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not Linux
        return False
    start = -(-tensor.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
    end = (tensor.data_ptr() + tensor.nbytes) // _PAGE_BYTES * _PAGE_BYTES
    if end <= start:
        return False
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(advise(start, end - start, mmap.MADV_HUGEPAGE) == 0)
