"""Small kernels that do what a GPU does not forgive, and some that nearly do."""

# ruff: noqa: N803 - BLOCK: tl.constexpr is upper case by Triton's convention

import triton
import triton.language as tl


@triton.jit
def copy(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Copy, with a mask for the end."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < count, other=0.0), mask=at < count)


@triton.jit
def copy_backwards(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Read from one too early on."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + count - 2 - at, mask=at < count), mask=at < count)


@triton.jit
def sum_into(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store every program's sum in one place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + at), axis=0))


@triton.jit
def add_into(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """Add every program's sum in one place."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + at), axis=0))


@triton.jit
def shift(x_ptr, BLOCK: tl.constexpr):
    """A program reads the first number of the next one."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at + 1))


@triton.jit
def scatter(ids_ptr, out_ptr, BLOCK: tl.constexpr):
    """Store lanes wherever it is said."""
    lane = tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.load(ids_ptr + lane), lane)


@triton.jit
def reverse_by_memory(x_ptr, work_ptr, out_ptr, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    """Read what other lanes stored."""
    lane = tl.arange(0, BLOCK)
    tl.store(work_ptr + lane, tl.load(x_ptr + lane))
    if WAITS:
        tl.debug_barrier()
    tl.store(out_ptr + lane, tl.load(work_ptr + BLOCK - 1 - lane))


@triton.jit
def copy_row(x_ptr, out_ptr, stride, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Copy the first few of a row."""
    row = tl.program_id(0)
    if IS_WIDE:
        row = row.to(tl.int64)
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + row * BLOCK + at, tl.load(x_ptr + row * stride + at))


@triton.jit
def lanes_left_out(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    """Sum up lanes that were not loaded."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + at, mask=at < count), axis=0))


@triton.jit
def sum_by_the_last(  # noqa: PLR0917 - a kernel takes its pointers by position
    x_ptr, parts_ptr, arrived_ptr, out_ptr, NUM: tl.constexpr, WAITS: tl.constexpr
):
    """Leave a part; the program that comes last adds all of them."""
    program = tl.program_id(0)
    lane = tl.arange(0, 4)
    tl.store(parts_ptr + program * 4 + lane, tl.load(x_ptr + program * 4 + lane))
    if WAITS:
        tl.debug_barrier()
    if tl.atomic_add(arrived_ptr, 1) == NUM - 1:
        tl.store(arrived_ptr, 0)
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, 4 * NUM)), axis=0))
