"""Products of few rows in Triton, and their launchers.

A program holds a tile of all rows and streams its outputs' weights. Where there are fewer tiles
than multiprocessors, the inputs are cut into parts: each leaves its sums, and the last to arrive
adds them up, first to last, and ends the product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.row_products.reference import ARRIVALS, MAX_ROWS, Gate, RowNorm
from paceline_kernels.tuned import blocks_of

# A few classes, so that all batches together compile only a few variants.
ROW_CLASSES = (16, 64, 128)
MAX_PARTS = 8
MIN_PART_TILES = 4
"""Tiles of inputs in a part, at least: as many as are on their way at once."""
_MOST_REGISTERS = 255
"""Of a thread. Left to itself, the assembler takes 72 where a gate asks for more, and spills."""
_GATES = {None: 0, "silu": 1, "gelu_tanh": 2}


@triton.jit
def _inverse_rms(squares_ptr, row, is_row, rows, eps, NUM_IN, NUM_SQUARES, SQUARES: tl.constexpr):
    """Add up each row's squares, as the product before has left them."""
    each = tl.arange(0, SQUARES)
    squares = tl.load(
        squares_ptr + each[:, None] * rows + row[None, :],
        mask=(each < NUM_SQUARES)[:, None] & is_row[None, :],
        other=0.0,
    )
    return tl.rsqrt(tl.sum(squares, axis=0) / NUM_IN + eps)


@triton.jit
def _gated(gate, up, dtype: tl.constexpr, IS_GELU: tl.constexpr):
    """Compute gate * sigmoid(s) * up, as the kernel of its own does: see `activation`."""
    gate = gate.to(dtype).to(tl.float32)
    steepness = gate
    if IS_GELU:
        steepness = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    gated = (gate * tl.sigmoid(steepness)).to(dtype).to(tl.float32)
    return gated * up.to(dtype).to(tl.float32)


@triton.jit
def _add_bias(sums, bias_ptr, output, is_output):
    bias = tl.load(bias_ptr + output, mask=is_output, other=0.0)
    return sums + bias.to(tl.float32)[None, :]


@triton.jit
def _joined(sums, partial_ptr, at, inside, part, parts, stride):
    """Add up the sums of all parts, first to last: one's own are still here.

    The others are read past the first cache, which does not see what other programs store.
    """
    total = tl.zeros(sums.shape, dtype=tl.float32)
    for other in range(parts):
        if other == part:
            total += sums
        else:
            left_ptr = partial_ptr + tl.cast(other, tl.int64) * stride
            total += tl.load(left_ptr + at, mask=inside, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def _finish(
    sums,  # [TILE_ROWS, TILE_OUT] float32
    up_sums,
    bias_ptr,
    residual_ptr,
    out_ptr,
    new_squares_ptr,
    row,
    output,
    inside,
    is_output,
    rows,
    NUM_OUT: tl.constexpr,
    GATE: tl.constexpr,
):
    """End a tile: bias, gate or residual, and its squares."""
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    at = row.to(tl.int64)[:, None] * NUM_OUT + output[None, :]
    if bias_ptr is not None:
        sums = _add_bias(sums, bias_ptr, output, is_output)
        if GATE:
            up_sums = _add_bias(up_sums, bias_ptr + NUM_OUT, output, is_output)
    if GATE:
        sums = _gated(sums, up_sums, dtype, GATE == 2)
    if residual_ptr is not None:
        # Rounded as a product of its own is, then as the sum is.
        residual = tl.load(residual_ptr + at, mask=inside, other=0.0)
        sums = sums.to(dtype).to(tl.float32) + residual.to(tl.float32)
    out = sums.to(dtype)
    tl.store(out_ptr + at, out, mask=inside)
    if new_squares_ptr is not None:
        wide = tl.where(inside, out.to(tl.float32), 0.0)
        squares = tl.sum(wide * wide, axis=1)
        tl.store(new_squares_ptr + tl.program_id(0) * rows + row, squares, mask=row < rows)


@triton.jit(do_not_specialize=["rows", "parts"])
def _row_product_kernel(  # noqa: C901 - its branches are chosen when it is compiled
    x_ptr,
    weight_ptr,
    bias_ptr,  # None: no bias
    norm_ptr,  # None: rows are multiplied as they are
    squares_ptr,  # None: no norm
    residual_ptr,  # None: nothing is added
    out_ptr,
    new_squares_ptr,  # None: nobody norms the result
    partial_ptr,  # [parts, 1 or 2, rows, NUM_OUT] float32
    arrived_ptr,  # [tiles of outputs], all 0
    rows,
    parts,
    eps,
    NUM_OUT: tl.constexpr,  # after the gate
    NUM_IN: tl.constexpr,
    NUM_SQUARES: tl.constexpr,
    SQUARES: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUT: tl.constexpr,
    TILE_IN: tl.constexpr,
    GATE: tl.constexpr,  # 0: none, 1: SiLU, 2: GELU
    IS_SPLIT: tl.constexpr,  # into several parts
    IS_DEPENDENT: tl.constexpr = False,
):
    """Compute a tile of outputs for all rows, over one part of the inputs."""
    wait_for_earlier(IS_DEPENDENT)
    tile, part = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, TILE_ROWS)
    output = tile * TILE_OUT + tl.arange(0, TILE_OUT)
    inputs = tl.arange(0, TILE_IN)
    is_row = row < rows
    is_output = output < NUM_OUT
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    NUM_TILES: tl.constexpr = (NUM_IN + TILE_IN - 1) // TILE_IN
    IS_RAGGED: tl.constexpr = NUM_IN % TILE_IN != 0
    first = NUM_TILES * part // parts
    end = NUM_TILES * (part + 1) // parts
    x_at = row[:, None] * NUM_IN + inputs[None, :]
    weight_at = output.to(tl.int64)[:, None] * NUM_IN + inputs[None, :]

    if norm_ptr is not None:
        inverse_rms = _inverse_rms(
            squares_ptr, row, is_row, rows, eps, NUM_IN, NUM_SQUARES, SQUARES
        )[:, None]
    sums = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
    up_sums = sums
    for step in range(first, end):
        start = step * TILE_IN
        has_row, has_output = is_row[:, None], is_output[:, None]
        if IS_RAGGED:
            within = start + inputs < NUM_IN
            has_row &= within[None, :]
            has_output &= within[None, :]
        x = tl.load(x_ptr + x_at + start, mask=has_row, other=0.0)
        if norm_ptr is not None:
            if IS_RAGGED:
                scale = tl.load(norm_ptr + start + inputs, mask=within, other=0.0)
            else:
                scale = tl.load(norm_ptr + start + inputs)
            x = (x.to(tl.float32) * inverse_rms).to(scale.dtype).to(tl.float32)
            x = (x * scale.to(tl.float32)[None, :]).to(dtype)
        weight = tl.load(weight_ptr + weight_at + start, mask=has_output, other=0.0)
        sums = tl.dot(x, tl.trans(weight), sums, input_precision="ieee")
        if GATE:
            up_at = weight_at + start + tl.cast(NUM_OUT, tl.int64) * NUM_IN
            up = tl.load(weight_ptr + up_at, mask=has_output, other=0.0)
            up_sums = tl.dot(x, tl.trans(up), up_sums, input_precision="ieee")

    inside = is_row[:, None] & is_output[None, :]
    is_last = True
    if IS_SPLIT:
        HALVES: tl.constexpr = 2 if GATE else 1
        at = row[:, None] * NUM_OUT + output[None, :]
        half = tl.cast(rows, tl.int64) * NUM_OUT
        own_ptr = partial_ptr + part * half * HALVES
        tl.store(own_ptr + at, sums, mask=inside)
        if GATE:
            tl.store(own_ptr + half + at, up_sums, mask=inside)
        # All threads have stored before one of them says so.
        tl.debug_barrier()
        is_last = tl.atomic_add(arrived_ptr + tile, 1, sem="acq_rel") == parts - 1
        if is_last:
            tl.store(arrived_ptr + tile, 0)  # for the next launch
            sums = _joined(sums, partial_ptr, at, inside, part, parts, half * HALVES)
            if GATE:
                up_sums = _joined(
                    up_sums, partial_ptr + half, at, inside, part, parts, half * HALVES
                )
    if is_last:
        _finish(
            sums,
            up_sums,
            bias_ptr,
            residual_ptr,
            out_ptr,
            new_squares_ptr,
            row,
            output,
            inside,
            is_output,
            rows,
            NUM_OUT,
            GATE,
        )


def row_product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: RowNorm | None = None,
    gate: Gate | None = None,
    *,
    arrived: Tensor | None = None,
) -> Tensor:
    """Launch over each tile of outputs and each part of the inputs."""
    num_out = len(weight) // (2 if gate else 1)
    out = torch.empty((len(x), num_out), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, norm, gate, None, out, None, arrived)
    return out


def add_row_product(
    x: Tensor, weight: Tensor, residual: Tensor, *, arrived: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Launch over each tile of outputs and each part of the inputs."""
    expect("residual", residual, shape=(len(x), len(weight)), dtypes=(x.dtype,), like=x)
    tiles = triton.cdiv(len(weight), _tile(x)["outputs"])
    out = torch.empty_like(residual)
    squares = torch.empty((tiles, len(x)), dtype=torch.float32, device=x.device)
    _launch(x, weight, None, None, None, residual, out, squares, arrived)
    return out, squares


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: RowNorm | None,
    gate: Gate | None,
    residual: Tensor | None,
    out: Tensor,
    squares: Tensor | None,
    arrived: Tensor | None,
) -> None:
    expect("x", x, shape=("rows", "in"), dtypes=FLOATS, like=x)
    rows, num_in = x.shape
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"rows must be 1 to {MAX_ROWS}, got {rows}")
    expect("weight", weight, shape=("out", num_in), dtypes=(x.dtype,), like=x)
    if gate and len(weight) % 2:
        raise ValueError(f"weight must be gate and up, an even number of rows, got {len(weight)}")
    if bias is not None:
        expect("bias", bias, shape=(len(weight),), dtypes=(x.dtype,), like=x)
    if norm is not None:
        expect("norm", norm.weight, shape=(num_in,), dtypes=(x.dtype, torch.float32), like=x)
        squares_shape = ("any", rows)
        expect("squares", norm.squares, shape=squares_shape, dtypes=(torch.float32,), like=x)
    num_out = out.shape[1]
    halves = 2 if gate else 1
    tile = _tile(x)
    # Both halves of a gated tile are as much as one of others.
    tile_out = tile["outputs"] // halves
    tiles = triton.cdiv(num_out, tile_out)
    parts = num_parts(
        tiles=tiles,
        multiprocessors=blocks_of.multiprocessors(x.device),
        input_tiles=triton.cdiv(num_in, tile["inputs"]),
        most=(num_in // (4 * tile["rows"]) + 1) // 2,
    )
    partial = None
    if parts > 1:
        sizes = (parts, halves, rows, num_out)
        partial = torch.empty(sizes, dtype=torch.float32, device=x.device)
        if arrived is None:
            arrived = torch.zeros(ARRIVALS, dtype=torch.int32, device=x.device)
        # With several parts there are no more tiles than multiprocessors.
        expect("arrived", arrived, shape=(ARRIVALS,), dtypes=(torch.int32,), like=x)
    num_squares = 1 if norm is None else len(norm.squares)
    _row_product_kernel[tiles, parts](
        x,
        weight,
        bias,
        None if norm is None else norm.weight,
        None if norm is None else norm.squares,
        residual,
        out,
        squares,
        partial,
        arrived if parts > 1 else None,
        rows,
        parts,
        0.0 if norm is None else norm.eps,
        NUM_OUT=num_out,
        NUM_IN=num_in,
        NUM_SQUARES=num_squares,
        SQUARES=triton.next_power_of_2(num_squares),
        TILE_ROWS=tile["rows"],
        TILE_OUT=tile_out,
        TILE_IN=tile["inputs"],
        GATE=_GATES[gate],
        IS_SPLIT=parts > 1,
        **dependent(x.device),
        maxnreg=_MOST_REGISTERS,
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
        enable_fp_fusion=True,
    )


def _tile(x: Tensor) -> dict[str, int]:
    rows = class_of(len(x))
    return dict(blocks_of("row_product", x.device, bits=8 * x.element_size(), rows=rows))


def class_of(rows: int) -> int:
    """Give the smallest class that holds the rows, or the largest."""
    return next((most for most in ROW_CLASSES if rows <= most), ROW_CLASSES[-1])


def num_parts(*, tiles: int, multiprocessors: int, input_tiles: int, most: int) -> int:
    """Parts of the inputs, from shapes alone: a program for each multiprocessor, and no more.

    With `most` parts the sums that are left and read again are half as many bytes as the weight.
    """
    return max(1, min(multiprocessors // tiles, input_tiles // MIN_PART_TILES, most, MAX_PARTS))
