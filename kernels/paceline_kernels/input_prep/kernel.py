"""A step's inputs made from its rows in Triton, and the launchers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.input_prep.reference import DRAW_COLUMNS

TILE = 256
_LONGS, _INTS, _FLOATS = (torch.int64,), (torch.int32,), (torch.float32,)


# All inputs are slices of one buffer at any offset: do not specialize on their alignment.
@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["rows_ptr", "columns_ptr", "bounds_ptr", "numbers_ptr"],
)
def _write_rows_kernel(
    table_ptr,
    rows_ptr,
    columns_ptr,
    bounds_ptr,
    numbers_ptr,
    table_stride,
    TILE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Write one tile of one run."""
    wait_for_earlier(IS_DEPENDENT)
    run = tl.program_id(0)
    first = tl.load(bounds_ptr + run)
    end = tl.load(bounds_ptr + run + 1)
    place = first + tl.program_id(1) * TILE + tl.arange(0, TILE)
    numbers = tl.load(numbers_ptr + place, mask=place < end, other=0)
    row_ptr = table_ptr + tl.load(rows_ptr + run) * table_stride + tl.load(columns_ptr + run)
    tl.store(row_ptr + place - first, numbers.to(tl.int32), mask=place < end)


@triton.jit(
    do_not_specialize=["table_stride", "width"],
    do_not_specialize_on_alignment=[
        "rows_ptr",
        "starts_ptr",
        "bounds_ptr",
        "given_ids_ptr",
        "token_ids_ptr",
        "positions_ptr",
        "slots_ptr",
        "block_table_ptr",
        "context_lens_ptr",
    ],
)
def _lay_out_step_kernel(
    table_ptr,
    latest_ptr,
    rows_ptr,
    starts_ptr,
    bounds_ptr,
    given_ids_ptr,
    token_ids_ptr,
    positions_ptr,
    slots_ptr,
    block_table_ptr,
    context_lens_ptr,
    table_stride,
    width,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Lay out one tile of a sequence's tokens, and one of its blocks."""
    wait_for_earlier(IS_DEPENDENT)
    sequence = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    row = tl.load(rows_ptr + sequence)
    start = tl.load(starts_ptr + sequence)
    first = tl.load(bounds_ptr + sequence)
    count = tl.load(bounds_ptr + sequence + 1) - first
    is_real = row >= 0
    row = tl.maximum(row, 0)  # padding: masks keep it from being read
    row_ptr = table_ptr + row * table_stride
    length = tl.where(is_real, start + count, 0)
    if tl.program_id(1) == 0:
        tl.store(context_lens_ptr + sequence, length.to(tl.int32))

    in_step = place < count
    position = tl.where(is_real, start + place, 0)
    has_block = place < tl.where(is_real, count, 0)
    block = tl.load(row_ptr + position // BLOCK_SIZE, mask=has_block, other=0)
    slot = tl.where(is_real, block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE, -1)
    given = tl.load(given_ids_ptr + first + place, mask=in_step, other=0)
    latest = tl.maximum(tl.load(latest_ptr + row), 0)
    token = tl.where(given < 0, tl.where(is_real, latest, 0), given)
    tl.store(token_ids_ptr + first + place, token, mask=in_step)
    tl.store(positions_ptr + first + place, position, mask=in_step)
    tl.store(slots_ptr + first + place, slot, mask=in_step)

    is_held = place < tl.cdiv(length, BLOCK_SIZE)
    held = tl.load(row_ptr + place, mask=is_held, other=0)
    tl.store(block_table_ptr + sequence * width + place, held, mask=place < width)


@triton.jit
def _as_float(bits):
    return bits.to(tl.float32, bitcast=True)


@triton.jit(
    do_not_specialize=["table_stride", "column", "count"],
    do_not_specialize_on_alignment=[
        "rows_ptr",
        "places_ptr",
        "seeds_ptr",
        "positions_ptr",
        "temperatures_ptr",
        "top_k_ptr",
        "top_p_ptr",
        "min_p_ptr",
    ],
)
def _lay_out_draws_kernel(
    table_ptr,
    rows_ptr,
    places_ptr,
    seeds_ptr,
    positions_ptr,
    temperatures_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    table_stride,
    column,
    count,
    TILE: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Gather what the tokens of one tile are drawn by."""
    wait_for_earlier(IS_DEPENDENT)
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = place < count
    row = tl.load(rows_ptr + place, mask=inside, other=-1)
    is_real = row >= 0
    draw_ptr = table_ptr + row * table_stride + column
    low = tl.load(draw_ptr, mask=is_real, other=0).to(tl.int64)
    high = tl.load(draw_ptr + 1, mask=is_real, other=0).to(tl.int64)
    last = tl.load(places_ptr + place, mask=is_real, other=-1)
    top_p = _as_float(tl.load(draw_ptr + 4, mask=is_real, other=0))
    tl.store(seeds_ptr + place, (high << 32) | (low & 0xFFFFFFFF), mask=inside)
    tl.store(positions_ptr + place, last + 1, mask=inside)
    temperature = _as_float(tl.load(draw_ptr + 2, mask=is_real, other=0))
    tl.store(temperatures_ptr + place, temperature, mask=inside)
    tl.store(top_k_ptr + place, tl.load(draw_ptr + 3, mask=is_real, other=0), mask=inside)
    tl.store(top_p_ptr + place, tl.where(is_real, top_p, 1.0), mask=inside)
    min_p = _as_float(tl.load(draw_ptr + 5, mask=is_real, other=0))
    tl.store(min_p_ptr + place, min_p, mask=inside)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows_ptr", "tokens_ptr"])
def _keep_tokens_kernel(
    latest_ptr, rows_ptr, tokens_ptr, count, TILE: tl.constexpr, IS_DEPENDENT: tl.constexpr = False
):
    """Keep the tokens of one tile of rows."""
    wait_for_earlier(IS_DEPENDENT)
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    row = tl.load(rows_ptr + place, mask=place < count, other=-1)
    token = tl.load(tokens_ptr + place, mask=place < count, other=0)
    tl.store(latest_ptr + row, token, mask=row >= 0)


def write_rows(
    table: Tensor, rows: Tensor, columns: Tensor, bounds: Tensor, numbers: Tensor
) -> None:
    """Launch over the runs, and tiles of the longest that a row can hold."""
    runs = len(rows)
    expect("table", table, shape=("rows", "columns"), dtypes=_INTS, like=table)
    expect("rows", rows, shape=(runs,), dtypes=_LONGS, like=table)
    expect("columns", columns, shape=(runs,), dtypes=_LONGS, like=table)
    expect("bounds", bounds, shape=(runs + 1,), dtypes=_LONGS, like=table)
    expect("numbers", numbers, shape=("numbers",), dtypes=_LONGS, like=table)
    _write_rows_kernel[runs, triton.cdiv(table.shape[1], TILE)](
        table,
        rows,
        columns,
        bounds,
        numbers,
        table.stride(0),
        TILE=TILE,
        **dependent(table.device),
        num_warps=4,
        enable_fp_fusion=True,
    )


def lay_out_step(
    table: Tensor,
    latest: Tensor,
    rows: Tensor,
    starts: Tensor,
    bounds: Tensor,
    given_ids: Tensor,
    *,
    block_size: int,
    max_count: int,
    token_ids: Tensor,
    positions: Tensor,
    slots: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
) -> None:
    """Launch over the sequences, and tiles of their tokens and blocks."""
    sequences, tokens = len(rows), len(given_ids)
    expect("table", table, shape=("rows", "columns"), dtypes=_INTS, like=table)
    expect("latest", latest, shape=(len(table),), dtypes=_LONGS, like=table)
    expect("rows", rows, shape=(sequences,), dtypes=_LONGS, like=table)
    expect("starts", starts, shape=(sequences,), dtypes=_LONGS, like=table)
    expect("bounds", bounds, shape=(sequences + 1,), dtypes=_LONGS, like=table)
    expect("given_ids", given_ids, shape=(tokens,), dtypes=_LONGS, like=table)
    expect("token_ids", token_ids, shape=(tokens,), dtypes=_LONGS, like=table)
    expect("positions", positions, shape=(tokens,), dtypes=_LONGS, like=table)
    expect("slots", slots, shape=(tokens,), dtypes=_LONGS, like=table)
    expect("block_table", block_table, shape=(sequences, "blocks"), dtypes=_INTS, like=table)
    expect("context_lens", context_lens, shape=(sequences,), dtypes=_INTS, like=table)
    width = block_table.shape[1]
    _lay_out_step_kernel[sequences, triton.cdiv(max(max_count, width), TILE)](
        table,
        latest,
        rows,
        starts,
        bounds,
        given_ids,
        token_ids,
        positions,
        slots,
        block_table,
        context_lens,
        table.stride(0),
        width,
        BLOCK_SIZE=block_size,
        TILE=TILE,
        **dependent(table.device),
        num_warps=4,
        enable_fp_fusion=True,
    )


def lay_out_draws(
    table: Tensor,
    rows: Tensor,
    places: Tensor,
    *,
    column: int,
    seeds: Tensor,
    positions: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
) -> None:
    """Launch over the tokens that sample."""
    count = len(rows)
    expect("table", table, shape=("rows", "columns"), dtypes=_INTS, like=table)
    if not 0 <= column <= table.shape[1] - DRAW_COLUMNS:
        most = table.shape[1] - DRAW_COLUMNS
        raise ValueError(f"column must be 0 to {most}, got {column}")
    expect("rows", rows, shape=(count,), dtypes=_LONGS, like=table)
    expect("places", places, shape=(count,), dtypes=_LONGS, like=table)
    expect("seeds", seeds, shape=(count,), dtypes=_LONGS, like=table)
    expect("positions", positions, shape=(count,), dtypes=_LONGS, like=table)
    expect("temperatures", temperatures, shape=(count,), dtypes=_FLOATS, like=table)
    expect("top_k", top_k, shape=(count,), dtypes=_INTS, like=table)
    expect("top_p", top_p, shape=(count,), dtypes=_FLOATS, like=table)
    expect("min_p", min_p, shape=(count,), dtypes=_FLOATS, like=table)
    _lay_out_draws_kernel[(triton.cdiv(count, TILE),)](
        table,
        rows,
        places,
        seeds,
        positions,
        temperatures,
        top_k,
        top_p,
        min_p,
        table.stride(0),
        column,
        count,
        TILE=TILE,
        **dependent(table.device),
        num_warps=4,
        enable_fp_fusion=True,
    )


def keep_tokens(latest: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """Launch over the rows."""
    count = len(rows)
    expect("latest", latest, shape=("rows",), dtypes=_LONGS, like=latest)
    expect("rows", rows, shape=(count,), dtypes=_LONGS, like=latest)
    expect("tokens", tokens, shape=(count,), dtypes=_LONGS, like=latest)
    _keep_tokens_kernel[(triton.cdiv(count, TILE),)](
        latest,
        rows,
        tokens,
        count,
        TILE=TILE,
        **dependent(latest.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
