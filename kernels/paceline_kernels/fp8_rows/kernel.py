"""Rows in FP8 in Triton, and the launcher."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.fp8 import CODES
from paceline_kernels.fp8.kernel import encode
from paceline_kernels.tuned import blocks_of

_INFINITY = tl.constexpr(0x7F800000)  # bits of float32


@triton.jit
def size_bits(x):
    """Give what sizes of float32 are compared by: NaN is the largest of all, then infinity."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def scales_of(peak_bits):
    """Give what brings a row within the codes, and the scale that they are multiplied back by."""
    peak = peak_bits.to(tl.float32, bitcast=True)
    peak = tl.where(peak > 0, peak, 1.0)
    is_number = peak_bits < _INFINITY
    inverse = tl.div_rn(448.0, tl.where(is_number, peak, 1.0))
    return inverse, tl.where(is_number, tl.div_rn(peak, 448.0), float("nan"))


@triton.jit
def _quantize_rows_kernel(
    x_ptr,
    codes_ptr,  # as bytes
    scales_ptr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Find a row's largest value, then make codes of it.

    A row of one block is read once: nothing is written between both loads, so they become one.
    """
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # int64: row * columns overflows int32 on long batches
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, COLUMNS, BLOCK):
        inside = start + columns < COLUMNS
        x = tl.load(x_ptr + row * COLUMNS + start + columns, mask=inside, other=0.0)
        largest = tl.maximum(largest, size_bits(x.to(tl.float32)))
    inverse, scale = scales_of(tl.max(largest, axis=0))
    for start in range(0, COLUMNS, BLOCK):
        inside = start + columns < COLUMNS
        x = tl.load(x_ptr + row * COLUMNS + start + columns, mask=inside, other=0.0)
        code = encode(x.to(tl.float32) * inverse)
        tl.store(codes_ptr + row * COLUMNS + start + columns, code, mask=inside)
    tl.store(scales_ptr + row, scale)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Launch over every row."""
    expect("x", x, shape=("rows", "columns"), dtypes=FLOATS, like=x)
    num_rows, num_columns = x.shape
    codes = torch.empty(x.shape, dtype=torch.uint8, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    blocks = blocks_of("quantize_rows", x.device)
    _quantize_rows_kernel[(num_rows,)](
        x,
        codes,
        scales,
        COLUMNS=num_columns,
        BLOCK=min(blocks["columns"], triton.next_power_of_2(num_columns)),
        **dependent(x.device),
        num_warps=blocks["num_warps"],
        enable_fp_fusion=True,
    )
    return codes.view(CODES), scales
