"""Memory of a cache: zeros that cost nothing until they are touched, and are then there."""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import torch

from paceline_kernels.cpu import fresh_zeros, take_memory

MIB = 1 << 20


def resident_mib(tensors: Sequence[torch.Tensor]) -> float:
    """How much of the tensors lies in memory; what else the process holds comes and goes."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = 0
    for tensor in tensors:
        count = tensor.nbytes // mmap.PAGESIZE
        present = (ctypes.c_ubyte * count)()
        address, size = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes)
        assert libc.mincore(address, size, present) == 0, os.strerror(ctypes.get_errno())
        pages += sum(page & 1 for page in present)
    return pages * mmap.PAGESIZE / MIB


def test_fresh_zeros_are_zeros_of_their_shape_and_type() -> None:
    """Aligned for huge pages, and writable."""
    for shape, dtype in [
        ((3, 5, 7), torch.bfloat16),
        ((4, 1 << 20), torch.float32),
        ((0, 2), torch.uint8),
    ]:
        fresh = fresh_zeros(shape, dtype)

        assert (fresh.shape, fresh.dtype) == (shape, dtype)
        assert fresh.is_contiguous()
        assert not fresh.any()
        assert fresh.data_ptr() % (2 * MIB) == 0 or not fresh.numel()
        assert fresh.fill_(1).all()


def test_memory_is_taken_beside_who_uses_it() -> None:
    """A machine that has too little shows it at the start; what is written meanwhile stays."""
    fresh = [fresh_zeros((64 * MIB,), torch.uint8) for _ in range(2)]
    before = resident_mib(fresh)
    began: list[tuple[int, int]] = []

    def begin() -> None:
        began.append((threading.get_ident(), os.getpriority(os.PRIO_PROCESS, 0)))

    thread = take_memory(fresh, begin)
    fresh[1][::1000] = 7
    thread.join()

    assert began == [(thread.ident, 19)]  # 19: whoever computes goes first
    assert os.getpriority(os.PRIO_PROCESS, 0) < 19
    assert before < 8
    assert resident_mib(fresh) == 128
    assert fresh[1].sum() == 7 * len(fresh[1][::1000])
    assert not fresh[0].any()


_ENDS_AT_ONCE = """
import os, sys
import torch
from paceline_kernels.cpu import fresh_zeros, take_memory

def take():
    take_memory([fresh_zeros((1 << 22,), torch.float32) for _ in range(3)], lambda: None)

for _ in range(12):
    child = os.fork()
    if not child:
        take()
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"a process that ended meanwhile ended with {status}")
"""


def test_a_process_that_ends_meanwhile_ends_well() -> None:
    """What holds the last of a tensor then must not be torch's code in a thread that is unwound."""
    run = subprocess.run(
        [sys.executable, "-c", _ENDS_AT_ONCE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert run.returncode == 0, run.stderr
