"""What adapters add to a product in Triton, and the launcher.

A program takes some tokens, and goes through the adapters that these have: the tokens of a prompt
share one. Both grids follow from shapes alone, so that a CUDA graph that was captured once serves
every step; where no token has an adapter, a program looks at its tokens and leaves.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier

MAX_PARTS = 3
_TILE_TOKENS = 16
"""The fewest that tensor cores take: decodes have many adapters and few tokens of each."""
_TILE_IN = 64
_MOST_COLUMNS = 128
_MOST_RANK = 64
_FEW_TOKENS = 128
_SPLITS = 8
"""Parts of the inputs with few tokens, for enough programs to read an adapter at full rate."""
_REGISTERS = 128
"""Left to itself the assembler aims at 64, and spills."""
_NOBODY = tl.constexpr(1 << 30)


@triton.jit
def _adapters_of(adapters_ptr, token, tokens):
    """Read which adapter each token has: -1 for none."""
    return tl.load(adapters_ptr + token, mask=token < tokens, other=-1).to(tl.int32)


@triton.jit
def _next_adapter(adapters, last):
    """Give the least adapter of any token above the last one; _NOBODY where there is none."""
    return tl.min(tl.where(adapters > last, adapters, _NOBODY), axis=0)


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["adapters_ptr"])
def _adapter_down_kernel(
    x_ptr,
    down_ptr,
    adapters_ptr,
    low_ptr,  # [tokens, SPLITS, COLUMNS] float32
    tokens,
    NUM_IN: tl.constexpr,
    COLUMNS: tl.constexpr,  # parts * rank
    SPLITS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_IN: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Multiply a part of some tokens' inputs by the first matrices of their adapters."""
    wait_for_earlier(IS_DEPENDENT)
    token = tl.program_id(0) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    adapters = _adapters_of(adapters_ptr, token, tokens)
    adapter = _next_adapter(adapters, -1)
    if adapter == _NOBODY:
        return
    split = tl.program_id(1)
    column = tl.program_id(2) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    inputs = tl.arange(0, TILE_IN)
    is_column = column < COLUMNS
    span: tl.constexpr = (NUM_IN + SPLITS * TILE_IN - 1) // (SPLITS * TILE_IN) * TILE_IN
    x_at = token.to(tl.int64)[:, None] * NUM_IN + inputs[None, :]
    column_at = column[:, None] * NUM_IN + inputs[None, :]

    total = tl.zeros([TILE_TOKENS, TILE_COLUMNS], dtype=tl.float32)
    while adapter < _NOBODY:
        own = adapters == adapter
        own_ptr = down_ptr + adapter.to(tl.int64) * COLUMNS * NUM_IN
        for step in range(0, span, TILE_IN):
            start = split * span + step
            inside = start + inputs < NUM_IN
            x = tl.load(x_ptr + x_at + start, mask=own[:, None] & inside[None, :], other=0.0)
            down = tl.load(
                own_ptr + column_at + start, mask=is_column[:, None] & inside[None, :], other=0.0
            )
            total = tl.dot(x, tl.trans(down), total, input_precision="ieee")
        adapter = _next_adapter(adapters, adapter)

    low_at = (token.to(tl.int64)[:, None] * SPLITS + split) * COLUMNS + column[None, :]
    tl.store(low_ptr + low_at, total, mask=(adapters >= 0)[:, None] & is_column[None, :])


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["adapters_ptr"])
def _adapter_up_kernel(
    y_ptr,
    up_ptr,
    adapters_ptr,
    low_ptr,
    tokens,
    NUM_OUT: tl.constexpr,
    END_0: tl.constexpr,  # of the first part's outputs
    END_1: tl.constexpr,  # of the second one's
    PARTS: tl.constexpr,
    RANK: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    TILE_OUT: tl.constexpr,
    TILE_RANK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Multiply that by the second matrices, for some outputs, and add it to the product."""
    wait_for_earlier(IS_DEPENDENT)
    token = tl.program_id(0) * TILE_TOKENS + tl.arange(0, TILE_TOKENS)
    adapters = _adapters_of(adapters_ptr, token, tokens)
    adapter = _next_adapter(adapters, -1)
    if adapter == _NOBODY:
        return
    first = tl.program_id(1) * TILE_OUT
    last = tl.minimum(first + TILE_OUT, NUM_OUT) - 1
    output = first + tl.arange(0, TILE_OUT)
    is_output = output < NUM_OUT
    part_of = (output >= END_0).to(tl.int32) + (output >= END_1).to(tl.int32)
    first_part = (first >= END_0).to(tl.int32) + (first >= END_1).to(tl.int32)
    last_part = (last >= END_0).to(tl.int32) + (last >= END_1).to(tl.int32)
    ranks = tl.arange(0, TILE_RANK)
    dtype = y_ptr.dtype.element_ty
    low_row = token.to(tl.int64) * SPLITS * PARTS * RANK

    total = tl.zeros([TILE_TOKENS, TILE_OUT], dtype=tl.float32)
    while adapter < _NOBODY:
        own = adapters == adapter
        own_ptr = up_ptr + adapter.to(tl.int64) * NUM_OUT * RANK
        for part in range(first_part, last_part + 1):  # nearly always one
            for start in range(0, RANK, TILE_RANK):
                rank = start + ranks
                inside = own[:, None] & (rank < RANK)[None, :]
                low = tl.zeros([TILE_TOKENS, TILE_RANK], dtype=tl.float32)
                for split in range(SPLITS):
                    low_at = low_row[:, None] + (split * PARTS + part) * RANK + rank[None, :]
                    low += tl.load(low_ptr + low_at, mask=inside, other=0.0)
                up = tl.load(
                    own_ptr + output[:, None] * RANK + rank[None, :],
                    mask=(is_output & (part_of == part))[:, None] & (rank < RANK)[None, :],
                    other=0.0,
                )
                total = tl.dot(low.to(dtype), tl.trans(up), total, input_precision="ieee")
        adapter = _next_adapter(adapters, adapter)

    y_at = token.to(tl.int64)[:, None] * NUM_OUT + output[None, :]
    written = (adapters >= 0)[:, None] & is_output[None, :]
    y = tl.load(y_ptr + y_at, mask=written, other=0.0).to(tl.float32)
    tl.store(y_ptr + y_at, (y + total).to(dtype), mask=written)


def add_adapters(
    y: Tensor, x: Tensor, down: Tensor, up: Tensor, adapters: Tensor, ends: Sequence[int]
) -> Tensor:
    """Launch over tiles of tokens and parts of the inputs, then over tiles of outputs."""
    expect("y", y, shape=("tokens", "out"), dtypes=FLOATS, like=y)
    tokens, num_out = y.shape
    expect("x", x, shape=(tokens, "in"), dtypes=(y.dtype,), like=y)
    num_in = x.shape[1]
    expect("up", up, shape=("adapters", num_out, "rank"), dtypes=(y.dtype,), like=y)
    num_adapters, _, rank = up.shape
    columns = len(ends) * rank
    expect("down", down, shape=(num_adapters, columns, num_in), dtypes=(y.dtype,), like=y)
    expect("adapters", adapters, shape=(tokens,), dtypes=(torch.int64,), like=y)
    is_ascending = [*ends] == sorted({*ends}) and bool(ends) and ends[0] > 0
    if not is_ascending or len(ends) > MAX_PARTS or ends[-1] != num_out:
        raise ValueError(f"ends must be 1 to {MAX_PARTS}, up to {num_out}, got {tuple(ends)}")

    splits = _SPLITS if tokens <= _FEW_TOKENS else 1
    low = torch.empty((tokens, splits, columns), dtype=torch.float32, device=y.device)
    tiles = triton.cdiv(tokens, _TILE_TOKENS)
    tile_columns = min(_MOST_COLUMNS, max(16, triton.next_power_of_2(columns)))
    tile_rank = min(_MOST_RANK, max(16, triton.next_power_of_2(rank)))
    tile_out = 128
    _adapter_down_kernel[tiles, splits, triton.cdiv(columns, tile_columns)](
        x,
        down,
        adapters,
        low,
        tokens,
        NUM_IN=num_in,
        COLUMNS=columns,
        SPLITS=splits,
        TILE_TOKENS=_TILE_TOKENS,
        TILE_IN=_TILE_IN,
        TILE_COLUMNS=tile_columns,
        **dependent(x.device),
        num_warps=4,
        num_stages=2 if y.dtype == torch.float32 else 3,
        enable_fp_fusion=True,
    )
    _adapter_up_kernel[tiles, triton.cdiv(num_out, tile_out)](
        y,
        up,
        adapters,
        low,
        tokens,
        NUM_OUT=num_out,
        END_0=ends[0],
        END_1=ends[min(1, len(ends) - 1)],
        PARTS=len(ends),
        RANK=rank,
        SPLITS=splits,
        TILE_TOKENS=_TILE_TOKENS,
        TILE_OUT=tile_out,
        TILE_RANK=tile_rank,
        **dependent(y.device),
        num_warps=4,
        num_stages=1,
        maxnreg=None if y.dtype == torch.float32 else _REGISTERS,
        enable_fp_fusion=True,
    )
    return y
