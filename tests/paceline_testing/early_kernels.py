"""Kernels that must not be launched before the one before them has ended, and one that may."""

# ruff: noqa: N803 - a kernel's names, as in `paceline_kernels`

import torch
import triton
import triton.language as tl

from paceline_kernels.dependent.kernel import wait_for_earlier


@triton.jit
def _waiting_kernel(x_ptr, out_ptr, count, IS_DEPENDENT: tl.constexpr = False):
    """As ours do."""
    wait_for_earlier(IS_DEPENDENT)
    if tl.program_id(0) >= count:
        return
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + tl.program_id(0)))


@triton.jit
def _loading_kernel(x_ptr, out_ptr, count, IS_DEPENDENT: tl.constexpr = False):
    """Reads what may not be written yet."""
    x = tl.load(x_ptr + tl.program_id(0), mask=tl.program_id(0) < count, other=0.0)
    wait_for_earlier(IS_DEPENDENT)
    tl.store(out_ptr + tl.program_id(0), x)


@triton.jit
def _storing_kernel(x_ptr, out_ptr, count, IS_DEPENDENT: tl.constexpr = False):
    """Writes what may still be read."""
    tl.store(out_ptr + count, 0.0)
    wait_for_earlier(IS_DEPENDENT)
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + tl.program_id(0)))


@triton.jit
def _counting_kernel(x_ptr, out_ptr, count, IS_DEPENDENT: tl.constexpr = False):
    """Counts itself too early."""
    before = tl.atomic_add(out_ptr + count, 1.0)
    wait_for_earlier(IS_DEPENDENT)
    tl.store(out_ptr + tl.program_id(0), before + tl.load(x_ptr + tl.program_id(0)))


@triton.jit
def _leaving_kernel(x_ptr, out_ptr, count, IS_DEPENDENT: tl.constexpr = False):
    """Ends before the kernel before it: who waits for this one does not wait for that."""
    if tl.program_id(0) >= count:
        return
    wait_for_earlier(IS_DEPENDENT)
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + tl.program_id(0)))


@triton.jit
def _doubting_kernel(x_ptr, out_ptr, count, IS_DEPENDENT: tl.constexpr = False):
    """Waits on one path of two."""
    if tl.program_id(0) < count:
        wait_for_earlier(IS_DEPENDENT)
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr + tl.program_id(0)))


EARLY = (
    _loading_kernel,
    _storing_kernel,
    _counting_kernel,
    _leaving_kernel,
    _doubting_kernel,
)


def launch() -> None:
    """Launch each, as a dependent launch does."""
    x = torch.zeros(64)
    for kernel in (_waiting_kernel, *EARLY):
        kernel[(4,)](
            x, x, 3, IS_DEPENDENT=True, launch_pdl=True, num_warps=1, enable_fp_fusion=True
        )
