"""A matrix product with a weight in INT8 or FP8 in Triton, and its launcher."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.fp8 import CODES
from paceline_kernels.fp8.kernel import widened
from paceline_kernels.tuned import blocks_of

# A few classes, so that all batches together compile only a few variants.
ROW_CLASSES = (16, 64, 128)


@triton.jit(do_not_specialize=["rows"])
def _quantized_linear_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    bias_ptr,  # None: no bias
    out_ptr,
    rows,
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUT: tl.constexpr,
    TILE_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Compute a tile of x (weight * scales).

    Whole numbers up to 127, and all codes of E4M3, are exact in every float type, so the scale of
    an output can wait until its sum is complete.
    """
    wait_for_earlier(IS_DEPENDENT)
    # The row tiles of one weight tile follow one another: it is still in the L2 cache.
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)
    inputs = tl.arange(0, TILE_IN)
    is_row = row < rows
    is_output = output < NUM_OUT
    x_at = row.to(tl.int64)[:, None] * NUM_IN + inputs[None, :]
    weight_at = output.to(tl.int64)[:, None] * NUM_IN + inputs[None, :]
    dtype = x_ptr.dtype.element_ty

    total = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
    for start in range(0, NUM_IN, TILE_IN):
        inside = start + inputs < NUM_IN
        x = tl.load(x_ptr + x_at + start, mask=is_row[:, None] & inside[None, :], other=0.0)
        weight = tl.load(
            weight_ptr + weight_at + start, mask=is_output[:, None] & inside[None, :], other=0.0
        )
        wide = widened(weight, dtype) if weight.dtype == tl.float8e4nv else weight.to(dtype)
        total = tl.dot(x, tl.trans(wide), total, input_precision="ieee")

    total *= tl.load(scales_ptr + output, mask=is_output, other=0.0)[None, :]
    if bias_ptr is not None:
        total += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    out_at = row.to(tl.int64)[:, None] * NUM_OUT + output[None, :]
    tl.store(out_ptr + out_at, total.to(dtype), mask=is_row[:, None] & is_output[None, :])


def quantized_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Launch over every tile of rows and of outputs."""
    expect("x", x, shape=("rows", "in"), dtypes=FLOATS, like=x)
    rows, num_in = x.shape
    expect("weight", weight, shape=("out", num_in), dtypes=(torch.int8, CODES), like=x)
    num_out = len(weight)
    expect("scales", scales, shape=(num_out,), dtypes=(torch.float32,), like=x)
    if bias is not None:
        expect("bias", bias, shape=(num_out,), dtypes=(x.dtype,), like=x)
    out = torch.empty((rows, num_out), dtype=x.dtype, device=x.device)
    tile = blocks_of("quantized_linear", x.device, bits=8 * x.element_size(), rows=class_of(rows))
    grid = triton.cdiv(rows, tile["rows"]), triton.cdiv(num_out, tile["outputs"])
    _quantized_linear_kernel[grid](
        x,
        weight,
        scales,
        bias,
        out,
        rows,
        NUM_OUT=num_out,
        NUM_IN=num_in,
        TILE_ROWS=tile["rows"],
        TILE_OUT=tile["outputs"],
        TILE_IN=tile["inputs"],
        **dependent(x.device),
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
        enable_fp_fusion=True,
    )
    return out


def class_of(rows: int) -> int:
    """Give the smallest class that holds the rows, or the largest."""
    return next((most for most in ROW_CLASSES if rows <= most), ROW_CLASSES[-1])
