"""A mixture of experts in Triton, and its launchers.

Six launches at most, of grids that follow from shapes alone: a CUDA graph that was captured once
serves every routing. Slots are sorted by expert on the device into tiles of one expert each; a
program without a tile returns at once.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.activation.kernel import gelu_tanh_mul_fp8, silu_mul_fp8
from paceline_kernels.checks import FLOATS, expect
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.fp8 import CODES
from paceline_kernels.fp8.kernel import widened
from paceline_kernels.fp8_rows.kernel import quantize_rows
from paceline_kernels.moe.reference import max_tiles
from paceline_kernels.tuned import Blocks, blocks_of

MAX_EXPERTS = 512
MAX_TOP_K = 32
ROW_CLASSES = (16, 64, 128)
"""Rows of a tile; an expert's average share of the slots says which."""
_ROUTED_TOKENS = 4
_SORTED_SLOTS = 1024
_SUMMED_COLUMNS = 1024

_LARGEST = tl.constexpr(1.0e38)  # twice as much is still a number


@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    logits_ptr,
    weights_ptr,
    ids_ptr,
    tokens,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    IS_RENORMALISED: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Take the likeliest expert of each token, then the likeliest of the rest.

    NaN compares below all numbers, so a row of NaN still gets valid expert ids.
    """
    wait_for_earlier(IS_DEPENDENT)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    expert = tl.arange(0, COLUMNS)
    place = tl.arange(0, PLACES)
    is_expert = (expert < NUM_EXPERTS)[None, :]
    is_token = token < tokens
    at = token.to(tl.int64)[:, None]
    logits = tl.load(
        logits_ptr + at * NUM_EXPERTS + expert[None, :],
        mask=is_token[:, None] & is_expert,
        other=0.0,
    ).to(tl.float32)
    logits = tl.minimum(tl.where(logits > -_LARGEST, logits, -_LARGEST), _LARGEST)
    left = tl.where(is_expert, logits, float("-inf"))
    peak = tl.max(left, axis=1)
    total = tl.sum(tl.exp(left - peak[:, None]), axis=1)

    sizes = tl.zeros([TOKENS, PLACES], dtype=tl.float32)
    ids = tl.zeros([TOKENS, PLACES], dtype=tl.int32)
    for step in tl.static_range(TOP_K):
        best, size = tl.argmax(left, axis=1), tl.max(left, axis=1)
        is_here = (place == step)[None, :]
        ids = tl.where(is_here, best.to(tl.int32)[:, None], ids)
        sizes = tl.where(is_here, tl.exp(size - peak)[:, None], sizes)
        left = tl.where(expert[None, :] == best[:, None], float("-inf"), left)
    if IS_RENORMALISED:
        total = tl.sum(sizes, axis=1)
    out_at = at * TOP_K + place[None, :]
    is_told = is_token[:, None] & (place < TOP_K)[None, :]
    tl.store(weights_ptr + out_at, sizes / total[:, None], mask=is_told)
    tl.store(ids_ptr + out_at, ids, mask=is_told)


@triton.jit(do_not_specialize=["slots", "max_tiles"], do_not_specialize_on_alignment=["ids_ptr"])
def _sort_slots_kernel(
    ids_ptr,
    order_ptr,
    experts_ptr,
    slots,
    max_tiles,
    NUM_EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Find one expert's slots in their order, behind the tiles of the experts before it.

    Each program counts all slots for itself: that takes no second launch and no atomics on
    global memory, so the order is always the same.
    """
    wait_for_earlier(IS_DEPENDENT)
    expert = tl.program_id(0)
    bins = tl.arange(0, BINS)
    within = tl.arange(0, BLOCK)
    counts = tl.zeros([BINS], dtype=tl.int32)
    for start in range(0, slots, BLOCK):
        ids = tl.load(ids_ptr + start + within, mask=start + within < slots, other=-1)
        counts += tl.histogram(tl.where(ids < 0, BINS - 1, ids), BINS)  # the last is no expert's
    tiles = tl.where(bins < NUM_EXPERTS, (counts + TILE - 1) // TILE, 0)
    first = tl.sum(tl.where(bins < expert, tiles, 0), axis=0)
    mine = tl.sum(tl.where(bins == expert, tiles, 0), axis=0)
    for start in range(0, mine, BLOCK):
        is_mine = start + within < mine
        tl.store(experts_ptr + first + start + within, within * 0 + expert, mask=is_mine)
    if expert == NUM_EXPERTS - 1:
        for start in range(first + mine, max_tiles, BLOCK):
            tl.store(experts_ptr + start + within, -1, mask=start + within < max_tiles)

    order_ptr += first * TILE
    found = 0
    for start in range(0, slots, BLOCK):
        slot = start + within
        ids = tl.load(ids_ptr + slot, mask=slot < slots, other=-1)
        is_mine = (ids == expert).to(tl.int32)
        rank = found + tl.cumsum(is_mine, axis=0) - 1
        tl.store(order_ptr + rank, slot, mask=is_mine > 0)
        found += tl.sum(is_mine, axis=0)
    rest = found + tl.arange(0, TILE)
    tl.store(order_ptr + rest, rest * 0 + slots, mask=rest < mine * TILE)


@triton.jit
def _weight_tile(weight_at, start, is_inside, dtype: tl.constexpr):
    """Load some weights, of the type of what they are multiplied with."""
    weight = tl.load(weight_at + start, mask=is_inside, other=0.0)
    if weight.dtype == dtype:
        return weight
    return widened(weight, dtype)


@triton.jit(do_not_specialize=["slots"])
def _expert_product_kernel(  # noqa: C901 - its branches are chosen when it is compiled
    x_ptr,
    x_scales_ptr,  # None: rows are not in FP8
    weight_ptr,
    scales_ptr,  # None: weights are not in FP8
    order_ptr,
    experts_ptr,
    out_ptr,
    slots,
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    SLOTS_A_ROW: tl.constexpr,
    SCALES: tl.constexpr,
    GATE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUT: tl.constexpr,
    TILE_IN: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Multiply one tile of an expert's slots by some of its outputs; gated, by two halves of them.

    Results are written where the slots were before they were sorted.
    """
    wait_for_earlier(IS_DEPENDENT)
    # The tiles of one expert follow one another: their weights are still in the L2 cache.
    tile = tl.program_id(0)
    expert = tl.load(experts_ptr + tile)
    if expert < 0:
        return
    slot = tl.load(order_ptr + tile * TILE_ROWS + tl.arange(0, TILE_ROWS))
    output = tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)
    inputs = tl.arange(0, TILE_IN)
    is_slot = slot < slots
    is_output = output < NUM_OUT
    x_at = x_ptr + (slot // SLOTS_A_ROW).to(tl.int64)[:, None] * NUM_IN + inputs[None, :]
    IS_GATED: tl.constexpr = GATE != "none"
    first = expert.to(tl.int64) * (2 * NUM_OUT if IS_GATED else NUM_OUT)
    weight_at = weight_ptr + (first + output)[:, None] * NUM_IN + inputs[None, :]
    dtype: tl.constexpr = x_ptr.dtype.element_ty

    total = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
    up = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
    for start in range(0, NUM_IN, TILE_IN):
        is_row, is_column = is_slot[:, None], is_output[:, None]
        if NUM_IN % TILE_IN != 0:
            is_inside = (start + inputs < NUM_IN)[None, :]
            is_row, is_column = is_row & is_inside, is_column & is_inside
        x = tl.load(x_at + start, mask=is_row, other=0.0)
        weight = _weight_tile(weight_at, start, is_column, dtype)
        # Hopper's sums of FP8 have 14 bits: they are added to a float32 after each tile.
        total = tl.dot(
            x, tl.trans(weight), total, input_precision="ieee", max_num_imprecise_acc=TILE_IN
        )
        if IS_GATED:
            weight = _weight_tile(weight_at + NUM_OUT * NUM_IN, start, is_column, dtype)
            up = tl.dot(
                x, tl.trans(weight), up, input_precision="ieee", max_num_imprecise_acc=TILE_IN
            )

    if x_scales_ptr is not None:
        row = slot // SLOTS_A_ROW
        x_scales = tl.load(x_scales_ptr + row, mask=is_slot, other=0.0)[:, None]
        total, up = total * x_scales, up * x_scales
    if scales_ptr is not None:
        if SCALES == 1:
            scale = tl.load(scales_ptr + expert)
            total, up = total * scale, up * scale
        else:
            scales_at = scales_ptr + expert * SCALES + output
            total *= tl.load(scales_at, mask=is_output, other=0.0)[None, :]
            if IS_GATED:
                up *= tl.load(scales_at + NUM_OUT, mask=is_output, other=0.0)[None, :]
    if IS_GATED:
        steepness = total
        if GATE == "gelu":
            steepness = 1.5957691216057308 * (total + 0.044715 * total * total * total)
        total = total * tl.sigmoid(steepness) * up
    out_at = slot.to(tl.int64)[:, None] * NUM_OUT + output[None, :]
    out = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_at, out, mask=is_slot[:, None] & is_output[None, :])


@triton.jit(do_not_specialize_on_alignment=["weights_ptr", "ids_ptr"])
def _sum_slots_kernel(
    y_ptr,  # [tokens, TOP_K, COLUMNS]
    weights_ptr,
    ids_ptr,
    out_ptr,
    COLUMNS: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Add up a token's slots by their weights, first to last, in float32."""
    wait_for_earlier(IS_DEPENDENT)
    token = tl.program_id(0).to(tl.int64)  # int64: slots * columns overflows int32
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for place in tl.static_range(TOP_K):
        slot = token * TOP_K + place
        # Without an expert nothing was written.
        end = tl.where(tl.load(ids_ptr + slot) >= 0, COLUMNS, 0)
        y = tl.load(y_ptr + slot * COLUMNS + column, mask=column < end, other=0.0)
        total += y.to(tl.float32) * tl.load(weights_ptr + slot)
    tl.store(out_ptr + token * COLUMNS + column, total.to(out_ptr.dtype.element_ty), mask=inside)


def route_experts(logits: Tensor, top_k: int, *, is_renormalised: bool) -> tuple[Tensor, Tensor]:
    """Launch over a few tokens at a time."""
    expect("logits", logits, shape=("tokens", "experts"), dtypes=FLOATS, like=logits)
    num_tokens, num_experts = logits.shape
    if num_experts > MAX_EXPERTS or not 1 <= top_k <= min(num_experts, MAX_TOP_K):
        raise ValueError(
            f"top_k must be 1 to {MAX_TOP_K} of at most {MAX_EXPERTS} experts, "
            f"got {top_k} of {num_experts}"
        )
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=logits.device)
    _route_kernel[(triton.cdiv(num_tokens, _ROUTED_TOKENS),)](
        logits,
        weights,
        ids,
        num_tokens,
        NUM_EXPERTS=num_experts,
        TOP_K=top_k,
        IS_RENORMALISED=is_renormalised,
        TOKENS=_ROUTED_TOKENS,
        COLUMNS=triton.next_power_of_2(num_experts),
        PLACES=triton.next_power_of_2(top_k),
        **dependent(logits.device),
        num_warps=_ROUTED_TOKENS,
        enable_fp_fusion=True,
    )
    return weights, ids


def fused_experts(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up_scales: Tensor | None = None,
    down_scales: Tensor | None = None,
    *,
    is_gelu: bool = False,
    is_dynamic: bool = False,
) -> Tensor:
    """Sort the slots, launch both products over every tile that there may be, and add up."""
    expect("x", x, shape=("tokens", "hidden"), dtypes=FLOATS, like=x)
    num_tokens, hidden = x.shape
    expect("ids", ids, shape=(num_tokens, "top_k"), dtypes=(torch.int32,), like=x)
    top_k = ids.shape[1]
    expect("weights", weights, shape=(num_tokens, top_k), dtypes=(torch.float32,), like=x)
    expect("gate_up", gate_up, shape=("experts", "out", hidden), dtypes=(x.dtype, CODES), like=x)
    num_experts, width, _ = gate_up.shape
    if width % 2:
        raise ValueError(f"gate_up must have an even number of outputs, gate then up, got {width}")
    down_shape = (num_experts, hidden, width // 2)
    expect("down", down, shape=down_shape, dtypes=(gate_up.dtype,), like=x)

    tiles = _tiles_of(x, gate_up, ids, is_dynamic=is_dynamic)
    gate = "gelu" if is_gelu else "silu"
    if is_dynamic:
        # A row's scale is known when all of the row is: the gate is a launch of its own.
        product = _product(_in_fp8(x), gate_up, gate_up_scales, tiles, slots_a_row=top_k)
        codes, scales = (gelu_tanh_mul_fp8 if is_gelu else silu_mul_fp8)(product)
        inner = _Rows(codes, scales, x.dtype)
    else:
        rows = _Rows(x, None, x.dtype)
        product = _product(rows, gate_up, gate_up_scales, tiles, slots_a_row=top_k, gate=gate)
        inner = _Rows(product, None, x.dtype)
    y = _product(inner, down, down_scales, tiles, slots_a_row=1)
    out = torch.empty_like(x)
    _sum_slots_kernel[num_tokens, triton.cdiv(hidden, _SUMMED_COLUMNS)](
        y,
        weights,
        ids,
        out,
        COLUMNS=hidden,
        TOP_K=top_k,
        BLOCK=_SUMMED_COLUMNS,
        **dependent(y.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def expert_product(
    x: Tensor,
    weight: Tensor,
    ids: Tensor,
    scales: Tensor | None = None,
    *,
    slots_a_row: int,
    is_dynamic: bool = False,
) -> Tensor:
    """Launch one of the products alone."""
    expect("x", x, shape=("rows", "in"), dtypes=FLOATS, like=x)
    expect("ids", ids, shape=("tokens", "top_k"), dtypes=(torch.int32,), like=x)
    expect("weight", weight, shape=("experts", "out", x.shape[1]), dtypes=(x.dtype, CODES), like=x)
    tiles = _tiles_of(x, weight, ids, is_dynamic=is_dynamic)
    rows = _in_fp8(x) if is_dynamic else _Rows(x, None, x.dtype)
    return _product(rows, weight, scales, tiles, slots_a_row=slots_a_row)


def sort_slots(ids: Tensor, num_experts: int, tile: int) -> tuple[Tensor, Tensor]:
    """Launch a program for each expert."""
    num_slots = ids.numel()
    num_tiles = max_tiles(num_slots, num_experts, tile)
    order = torch.empty(num_tiles * tile, dtype=torch.int32, device=ids.device)
    experts = torch.empty(num_tiles, dtype=torch.int32, device=ids.device)
    _sort_slots_kernel[(num_experts,)](
        ids,
        order,
        experts,
        num_slots,
        num_tiles,
        NUM_EXPERTS=num_experts,
        BINS=triton.next_power_of_2(num_experts + 1),
        TILE=tile,
        BLOCK=_SORTED_SLOTS,
        **dependent(ids.device),
        num_warps=4,
        enable_fp_fusion=True,
    )
    return order, experts


def class_of(num_slots: int, num_experts: int) -> int:
    """Give the rows of a tile: the smallest that holds twice an expert's average share."""
    wanted = -(-2 * num_slots // num_experts)
    return next((rows for rows in ROW_CLASSES if wanted <= rows), ROW_CLASSES[-1])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that a product multiplies."""

    values: Tensor  # [rows, in]
    scales: Tensor | None  # [rows], where the values are in FP8
    dtype: torch.dtype
    """The type of the result."""


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Slots in tiles of one expert each."""

    order: Tensor  # [tiles * tile]
    experts: Tensor  # [tiles]
    num_slots: int
    blocks: Blocks


def _tiles_of(x: Tensor, weight: Tensor, ids: Tensor, *, is_dynamic: bool) -> _Tiles:
    is_fp8, num_experts = weight.dtype == CODES, len(weight)
    if is_dynamic and not is_fp8:
        raise ValueError(f"rows become FP8 for weights in FP8 alone, got {weight.dtype}")
    if num_experts > MAX_EXPERTS:
        raise ValueError(f"experts must be at most {MAX_EXPERTS}, got {num_experts}")
    blocks = blocks_of(
        "fused_experts",
        x.device,
        weight=("fp8_dynamic" if is_dynamic else "fp8") if is_fp8 else "own",
        bits=8 * x.element_size(),
        rows=class_of(ids.numel(), num_experts),
    )
    return _Tiles(*sort_slots(ids, num_experts, blocks["rows"]), ids.numel(), blocks)


def _in_fp8(x: Tensor) -> _Rows:
    return _Rows(*quantize_rows(x), x.dtype)


def _product(
    rows: _Rows,
    weight: Tensor,
    scales: Tensor | None,
    tiles: _Tiles,
    *,
    slots_a_row: int,
    gate: str = "none",
) -> Tensor:
    num_experts, num_out, num_in = weight.shape
    if (scales is not None) != (weight.dtype == CODES):
        raise ValueError(f"scales are for weights in FP8, and for them alone: got {weight.dtype}")
    num_scales = 0
    if scales is not None:
        num_scales = num_out if scales.shape[-1] != 1 else 1
        shape = (num_experts, num_scales)
        expect("scales", scales, shape=shape, dtypes=(torch.float32,), like=weight)
    blocks, is_gated = tiles.blocks, gate != "none"
    # Half of a gated tile's outputs are gates, half of them are what is gated.
    tile_out = blocks["outputs"] // 2 if is_gated else blocks["outputs"]
    num_out = num_out // 2 if is_gated else num_out
    out = torch.empty((tiles.num_slots, num_out), dtype=rows.dtype, device=weight.device)
    _expert_product_kernel[len(tiles.experts), triton.cdiv(num_out, tile_out)](
        rows.values,
        rows.scales,
        weight,
        scales,
        tiles.order,
        tiles.experts,
        out,
        tiles.num_slots,
        NUM_OUT=num_out,
        NUM_IN=num_in,
        SLOTS_A_ROW=slots_a_row,
        SCALES=num_scales,
        GATE=gate,
        TILE_ROWS=blocks["rows"],
        TILE_OUT=tile_out,
        TILE_IN=blocks["inputs"],
        **dependent(weight.device),
        num_warps=blocks["num_warps"],
        num_stages=blocks["num_stages"],
        enable_fp_fusion=True,
    )
    return out
