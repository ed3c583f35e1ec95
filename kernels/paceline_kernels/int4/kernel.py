"""A matrix product with a weight of 4 bits in Triton, and its launcher.

With few rows the inputs are cut into parts, so that there are programs enough to read the weight
at the memory's rate; a second kernel adds up the parts, always in one order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.int4.layout import BLOCK_IN, WORDS, group_size
from paceline_kernels.tuned import blocks_of

# A few classes, so that all batches together compile only a few variants.
ROW_CLASSES = (16, 64, 128)
MAX_PARTS = 16
MIN_PART_BLOCKS = 4
"""Blocks of inputs in a part, at least: below it, adding up costs more."""
_FEW_ROWS = 16
_JOINED_COLUMNS = 512

# Triton's interpreter has no assembly.
_IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def _fma_pairs(x, y, z, dtype: tl.constexpr):
    """Compute x * y + z of both halves of each word, rounded once.

    Of two operations on halves the compiler makes four instructions, of which this is one.
    """
    return tl.inline_asm_elementwise(
        "fma.rn.bf16x2 $0, $1, $2, $3;" if dtype == tl.bfloat16 else "fma.rn.f16x2 $0, $1, $2, $3;",
        "=r,r,r,r",
        [x, y, z],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _less_zero(words, zero, PLACE: tl.constexpr, dtype: tl.constexpr):
    """Give a pair of each word's values, less their zero point: exact in every type.

    In types of 16 bits a value becomes the last bits of a mantissa, both of a pair by one
    instruction: the last bit of 2^7 in bfloat16, and of 2^10 in float16, is worth 1.
    Converting would take a slower one for each value.
    """
    pair = (words >> (4 * PLACE)) & 0x000F000F
    if dtype == tl.float32:
        values = tl.join((pair & 0xF) - zero, (pair >> 16) - zero).to(dtype)
    else:
        base: tl.constexpr = 0x4300 if dtype == tl.bfloat16 else 0x6400
        one: tl.constexpr = 0x3F803F80 if dtype == tl.bfloat16 else 0x3C003C00
        pair |= base * 0x10001
        if _IS_COMPILED:
            minus = ((base + zero) * 0x10001) ^ -0x7FFF8000  # the signs of both halves
            pair = _fma_pairs(pair, one, minus, dtype)
        values = tl.join(pair.to(tl.int16), (pair >> 16).to(tl.int16)).to(dtype, bitcast=True)
        if not _IS_COMPILED:
            values -= (base + zero).to(tl.int16).to(dtype, bitcast=True)[:, :, None]
    return tl.reshape(values, (words.shape[0], 2 * words.shape[1]))


@triton.jit
def _group_entry(groups_ptr, block, PLACE: tl.constexpr, output, is_output, SIZES: tl.constexpr):
    """Load scales and zero points of the group that a place of a block is in."""
    NUM_OUT: tl.constexpr = SIZES[0]
    NUM_IN: tl.constexpr = SIZES[1]
    GROUP: tl.constexpr = SIZES[2]
    at = 0
    if GROUP != NUM_IN:
        # Beyond the last group x is 0.
        at = tl.minimum((block * 4 + PLACE) * 32 // GROUP, NUM_IN // GROUP - 1)
    return tl.load(groups_ptr + at * NUM_OUT + output, mask=is_output, other=0)


@triton.jit
def _scaled(words, entry, PLACE: tl.constexpr, dtype: tl.constexpr):
    """Give what a pair of each word's values means, rounded to a type."""
    scale = (entry & ~0xFF).to(tl.float32, bitcast=True).to(dtype)
    return _less_zero(words, (entry & 0xFF)[:, None], PLACE, dtype) * scale[:, None]


@triton.jit
def _scaled_block(
    words, groups_ptr, block, output, is_output, SIZES: tl.constexpr, dtype: tl.constexpr
):
    """Give the weights of a block of inputs, [outputs, inputs]."""
    GROUP: tl.constexpr = SIZES[2]
    IS_WHOLE: tl.constexpr = SIZES[1] == GROUP
    entry_0 = _group_entry(groups_ptr, block, 0, output, is_output, SIZES)
    entry_1, entry_2 = entry_0, entry_0
    if GROUP == 32 and not IS_WHOLE:
        entry_1 = _group_entry(groups_ptr, block, 1, output, is_output, SIZES)
    if GROUP <= 64 and not IS_WHOLE:
        entry_2 = _group_entry(groups_ptr, block, 2, output, is_output, SIZES)
    entry_3 = entry_2
    if GROUP == 32 and not IS_WHOLE:
        entry_3 = _group_entry(groups_ptr, block, 3, output, is_output, SIZES)
    # Places stay in the registers of their thread: neither joining nor turning moves anything.
    even = tl.join(_scaled(words, entry_0, 0, dtype), _scaled(words, entry_2, 2, dtype))
    odd = tl.join(_scaled(words, entry_1, 1, dtype), _scaled(words, entry_3, 3, dtype))
    places_last = tl.join(even, odd)  # [outputs, inputs of a place, 2, 2]
    return tl.reshape(tl.permute(places_last, (0, 2, 3, 1)), (words.shape[0], 8 * words.shape[1]))


@triton.jit(do_not_specialize=["rows"])
def _int4_linear_kernel(  # noqa: C901, PLR0912 - its branches are chosen when it is compiled
    x_ptr,
    weight_ptr,
    groups_ptr,
    bias_ptr,  # None: no bias
    out_ptr,  # [rows, out], or [parts, rows, out] float32
    rows,
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    GROUP: tl.constexpr,
    WORDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUT: tl.constexpr,
    TILE_IN: tl.constexpr,
    IS_FEW: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Compute a tile of x weight^T over one part of the inputs.

    Few rows: whole numbers are multiplied, exact in every type, and the scale of a group is
    applied to its sum. Many rows: the scale is applied to each value, as sums outnumber values,
    and the outputs are the left side, which wgmma and tcgen05 take from where it was computed;
    a block of inputs at once where one product is waited for, a quarter at a time elsewhere.
    """
    wait_for_earlier(IS_DEPENDENT)
    # The row tiles of one weight tile follow one another: it is still in the L2 cache.
    row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    output = tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)
    part = tl.program_id(2)
    word = tl.arange(0, WORDS)
    column = tl.arange(0, TILE_IN)
    is_row = row < rows
    is_output = output < NUM_OUT
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    BLOCK_IN: tl.constexpr = 8 * WORDS
    CHUNK: tl.constexpr = 2 * WORDS
    NUM_BLOCKS: tl.constexpr = (NUM_IN + BLOCK_IN - 1) // BLOCK_IN
    IS_RAGGED: tl.constexpr = NUM_IN % BLOCK_IN != 0
    SIZES: tl.constexpr = (NUM_OUT, NUM_IN, GROUP)
    # A group that is all of a row has any size.
    CHUNKS: tl.constexpr = 4 if GROUP == NUM_IN else GROUP // CHUNK
    first = NUM_BLOCKS * part // tl.num_programs(2)
    end = NUM_BLOCKS * (part + 1) // tl.num_programs(2)
    weight_at = output[:, None] * WORDS + word[None, :]
    x_at = row.to(tl.int64)[:, None] * NUM_IN + column[None, :]

    if IS_FEW:
        total = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
    else:
        total = tl.zeros([TILE_OUT, TILE_ROWS], dtype=tl.float32)
    for block in range(first, end):
        block_ptr = weight_ptr + tl.cast(block, tl.int64) * (NUM_OUT * WORDS)
        words = tl.load(block_ptr + weight_at, mask=is_output[:, None], other=0)
        if TILE_IN == BLOCK_IN:
            start = block * BLOCK_IN
            is_inside = is_row[:, None]
            if IS_RAGGED:
                is_inside &= (start + column < NUM_IN)[None, :]
            x = tl.load(x_ptr + x_at + start, mask=is_inside, other=0.0)
            values = _scaled_block(words, groups_ptr, block, output, is_output, SIZES, dtype)
            total = tl.dot(values, tl.trans(x), total, input_precision="ieee")
        else:
            for group in tl.static_range(4 // CHUNKS):
                entry = _group_entry(groups_ptr, block, group * CHUNKS, output, is_output, SIZES)
                if IS_FEW:
                    sums = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
                for chunk in tl.static_range(CHUNKS):
                    start = block * BLOCK_IN + (group * CHUNKS + chunk) * CHUNK
                    is_inside = is_row[:, None]
                    if IS_RAGGED:
                        is_inside &= (start + column < NUM_IN)[None, :]
                    x = tl.load(x_ptr + x_at + start, mask=is_inside, other=0.0)
                    if IS_FEW:
                        zero = (entry & 0xFF)[:, None]
                        values = _less_zero(words, zero, group * CHUNKS + chunk, dtype)
                        sums = tl.dot(x, tl.trans(values), sums, input_precision="ieee")
                    else:
                        values = _scaled(words, entry, group * CHUNKS + chunk, dtype)
                        total = tl.dot(values, tl.trans(x), total, input_precision="ieee")
                if IS_FEW:
                    total += sums * (entry & ~0xFF).to(tl.float32, bitcast=True)[None, :]

    if not IS_FEW:
        total = tl.trans(total)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    out_at = (tl.cast(part, tl.int64) * rows + row)[:, None] * NUM_OUT + output[None, :]
    out = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_at, out, mask=is_row[:, None] & is_output[None, :])


@triton.jit(do_not_specialize=["rows", "parts"])
def _join_parts_kernel(
    partial_ptr,  # [parts, rows, out] float32
    bias_ptr,  # None: no bias
    out_ptr,
    rows,
    parts,
    NUM_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Add up the parts of some outputs of a row, first to last, then the bias."""
    wait_for_earlier(IS_DEPENDENT)
    row = tl.program_id(0).to(tl.int64)  # int64: parts * rows * outputs overflows int32
    output = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_output = output < NUM_OUT
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in range(parts):
        at = (part * rows + row) * NUM_OUT + output
        total += tl.load(partial_ptr + at, mask=is_output, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + output, mask=is_output, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * NUM_OUT + output, total.to(out_ptr.dtype.element_ty), mask=is_output)


def int4_linear(x: Tensor, weight: Tensor, groups: Tensor, bias: Tensor | None = None) -> Tensor:
    """Launch over every tile of rows and of outputs and each part, then over all sums."""
    expect("x", x, shape=("rows", "in"), dtypes=FLOATS, like=x)
    rows, num_in = x.shape
    num_blocks = triton.cdiv(num_in, BLOCK_IN)
    expect("weight", weight, shape=(num_blocks, "out", WORDS), dtypes=(torch.int32,), like=x)
    num_out = weight.shape[1]
    expect("groups", groups, shape=("groups", num_out), dtypes=(torch.int32,), like=x)
    group = group_size(num_in, len(groups))
    if bias is not None:
        expect("bias", bias, shape=(num_out,), dtypes=(x.dtype,), like=x)
    tile = blocks_of("int4_linear", x.device, bits=8 * x.element_size(), rows=class_of(rows))
    is_few = tile["rows"] <= _FEW_ROWS
    row_tiles, out_tiles = triton.cdiv(rows, tile["rows"]), triton.cdiv(num_out, tile["outputs"])
    parts = num_parts(
        programs=row_tiles * out_tiles, wanted_programs=tile["programs"], num_blocks=num_blocks
    )
    out = torch.empty((rows, num_out), dtype=x.dtype, device=x.device)
    sums = out
    if parts > 1:
        sums = torch.empty((parts, rows, num_out), dtype=torch.float32, device=x.device)
    _int4_linear_kernel[row_tiles, out_tiles, parts](
        x,
        weight,
        groups,
        bias if parts == 1 else None,
        sums,
        rows,
        NUM_OUT=num_out,
        NUM_IN=num_in,
        GROUP=group,
        WORDS=WORDS,
        TILE_ROWS=tile["rows"],
        TILE_OUT=tile["outputs"],
        TILE_IN=2 * WORDS if is_few else tile["inputs"],  # each group of few has its own sum
        IS_FEW=is_few,
        **dependent(x.device),
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
        enable_fp_fusion=True,
    )
    if parts > 1:
        _join_parts_kernel[rows, triton.cdiv(num_out, _JOINED_COLUMNS)](
            sums,
            bias,
            out,
            rows,
            parts,
            NUM_OUT=num_out,
            BLOCK=_JOINED_COLUMNS,
            **dependent(sums.device),
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


def class_of(rows: int) -> int:
    """Give the smallest class that holds the rows, or the largest."""
    return next((most for most in ROW_CLASSES if rows <= most), ROW_CLASSES[-1])


def num_parts(*, programs: int, wanted_programs: int, num_blocks: int) -> int:
    """Parts of the inputs, from shapes alone: enough programs to fill the device.

    `programs` there are with one part.
    """
    wanted = -(-wanted_programs // max(1, programs))
    return max(1, min(wanted, num_blocks // MIN_PART_BLOCKS, MAX_PARTS))
