"""Split-KV decode attention in Triton, and its launcher.

A first kernel attends over one part of one row's context, for all query heads that share a KV
head; a second one joins the parts. The grid follows from shapes alone, so a CUDA graph that was
captured once serves every batch: a part that a short row does not need leaves at once.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, MAX_GROUP, Exponents, expect, expect_caches
from paceline_kernels.paged_kv.kernel import attend
from paceline_kernels.tuned import blocks_of

MAX_SPLITS = 32
MIN_SPLITS = 8  # a long context among short ones is the tail of the step: never left in one piece


@triton.jit
def _split_tokens(visible, SPLITS: tl.constexpr, MIN_TOKENS: tl.constexpr, TILE: tl.constexpr):
    """Tokens in each part of what a row sees: whole tiles, and not too few."""
    return tl.maximum(tl.cdiv(tl.cdiv(visible, SPLITS), TILE) * TILE, MIN_TOKENS)


@triton.jit
def _num_visible(length, WINDOW: tl.constexpr):
    """Tokens of a context that its last one sees; WINDOW is 0 where there is none."""
    if WINDOW > 0:
        return tl.minimum(length, WINDOW)
    return length


# What changes from step to step is not compiled in: nothing compiles while serving.
@triton.jit(
    do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["table_ptr", "lens_ptr"]
)
def _attend_split_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_exponents_ptr,  # None: no FP8
    v_exponents_ptr,
    table_ptr,
    lens_ptr,
    partial_ptr,  # [rows, num_q_heads, SPLITS, HEAD_SIZE] float32
    lse_ptr,  # [rows, num_q_heads, SPLITS] float32, base 2
    scale_log2,
    block_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_KV: tl.constexpr,
    COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Attend over one part of one row's context."""
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lens_ptr + row)
    visible = _num_visible(length, WINDOW)
    span = _split_tokens(visible, SPLITS, MIN_TOKENS, TILE_KV)
    start = length - visible + split * span
    if start >= length:
        return
    end = tl.minimum(start + span, length)

    member = tl.arange(0, TILE_Q)
    columns = tl.arange(0, COLUMNS)
    head = row * NUM_KV_HEADS * GROUP + kv_head * GROUP + member
    inside = (member < GROUP)[:, None] & (columns < HEAD_SIZE)[None, :]
    q = tl.load(q_ptr + head[:, None] * HEAD_SIZE + columns[None, :], mask=inside, other=0.0)

    out, lse = attend(
        q,
        tl.full([TILE_Q], end - 1, dtype=tl.int32),
        k_cache_ptr,
        v_cache_ptr,
        k_exponents_ptr,
        v_exponents_ptr,
        table_ptr + row * table_stride,
        start,
        end,
        block_stride,
        kv_head,
        scale_log2,
        NUM_KV_HEADS,
        HEAD_SIZE,
        BLOCK_SIZE,
        TILE_Q,
        TILE_KV,
        COLUMNS,
        0,  # every token of the part is within the window
        SOFTCAP,
    )

    part = head * SPLITS + split
    tl.store(partial_ptr + part[:, None] * HEAD_SIZE + columns[None, :], out, mask=inside)
    tl.store(lse_ptr + part, lse, mask=member < GROUP)


@triton.jit(do_not_specialize_on_alignment=["lens_ptr"])
def _join_splits_kernel(
    partial_ptr,
    lse_ptr,
    lens_ptr,
    out_ptr,
    NUM_Q_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    MIN_TOKENS: tl.constexpr,
    TILE_KV: tl.constexpr,
    COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr,
):
    """Join the parts that the row has: out = sum(2 ** lse * partial) / sum(2 ** lse)."""
    row = tl.program_id(0).to(tl.int64)
    head = row * NUM_Q_HEADS + tl.program_id(1)
    length = tl.load(lens_ptr + row)
    visible = _num_visible(length, WINDOW)
    num_parts = tl.cdiv(visible, _split_tokens(visible, SPLITS, MIN_TOKENS, TILE_KV))

    part = tl.arange(0, SPLITS)
    columns = tl.arange(0, COLUMNS)
    is_live = part < num_parts
    in_head = columns < HEAD_SIZE
    at = head * SPLITS + part
    lse = tl.load(lse_ptr + at, mask=is_live, other=float("-inf"))
    peak = tl.maximum(tl.max(lse, axis=0), -1e30)  # a padding row has no part: no -inf - -inf
    weights = tl.exp2(lse - peak)
    partial = tl.load(
        partial_ptr + at[:, None] * HEAD_SIZE + columns[None, :],
        mask=is_live[:, None] & in_head[None, :],
        other=0.0,
    )
    # The largest weight is 1, so only a padding row's sum is below 1: it divides 0 by 1.
    total = tl.maximum(tl.sum(weights, axis=0), 1.0)
    out = tl.sum(weights[:, None] * partial, axis=0) / total
    tl.store(out_ptr + head * HEAD_SIZE + columns, out.to(out_ptr.dtype.element_ty), mask=in_head)


def paged_decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    exponents: Exponents = None,
) -> Tensor:
    """Launch over every row, KV head and part of the context, then over every head."""
    expect_caches(k_cache, v_cache, exponents, like=q)
    _, block_size, num_kv_heads, head_size = k_cache.shape
    expect("q", q, shape=("rows", "num_q_heads", head_size), dtypes=FLOATS, like=q)
    rows, num_q_heads, _ = q.shape
    expect("block_table", block_table, shape=(rows, "blocks"), dtypes=(torch.int32,), like=q)
    expect("context_lens", context_lens, shape=(rows,), dtypes=(torch.int32,), like=q)
    group, rest = divmod(num_q_heads, num_kv_heads)
    if rest or not 1 <= group <= MAX_GROUP:
        raise ValueError(
            f"num_q_heads must be 1 to {MAX_GROUP} times num_kv_heads={num_kv_heads}, "
            f"got {num_q_heads}"
        )

    columns = max(16, triton.next_power_of_2(head_size))  # 16: the least that a dot takes
    blocks = blocks_of(
        "decode_attention",
        q.device,
        kv="own" if exponents is None else "fp8",
        bits=8 * q.element_size(),
        columns=columns,
    )
    tile_kv, part_tokens = blocks["tokens"], blocks["part_tokens"]
    max_len = block_table.shape[1] * block_size
    splits = num_splits(
        programs=rows * num_kv_heads,
        wanted_programs=blocks["programs"],
        max_len=min(max_len, window or max_len),
        part_tokens=part_tokens,
    )
    partial = torch.empty(
        (rows, num_q_heads, splits, head_size), dtype=torch.float32, device=q.device
    )
    lse = torch.empty((rows, num_q_heads, splits), dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    _attend_split_kernel[rows, num_kv_heads, splits](
        q,
        k_cache,
        v_cache,
        *(exponents or (None, None)),
        block_table,
        context_lens,
        partial,
        lse,
        scale * math.log2(math.e),
        k_cache.stride(0),
        block_table.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        SPLITS=splits,
        MIN_TOKENS=part_tokens,
        TILE_Q=16,
        TILE_KV=tile_kv,
        COLUMNS=columns,
        WINDOW=window or 0,
        SOFTCAP=softcap or 0.0,
        num_warps=blocks["num_warps"],
        num_stages=blocks["num_stages"],
        enable_fp_fusion=True,
    )
    _join_splits_kernel[rows, num_q_heads](
        partial,
        lse,
        context_lens,
        out,
        NUM_Q_HEADS=num_q_heads,
        HEAD_SIZE=head_size,
        SPLITS=splits,
        MIN_TOKENS=part_tokens,
        TILE_KV=tile_kv,
        COLUMNS=columns,
        WINDOW=window or 0,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def num_splits(*, programs: int, wanted_programs: int, max_len: int, part_tokens: int) -> int:
    """Parts of the longest context, from shapes alone: enough programs to fill the device.

    `programs` there are with one part, `part_tokens` a part has at least: below it, joining costs
    more. A power of two, so that all batch sizes together compile only a few variants.
    """
    wanted = -(-wanted_programs // max(1, programs))
    useful = -(-max_len // part_tokens)
    limit = min(MAX_SPLITS, _power_of_2_from(useful))
    return min(max(_power_of_2_from(wanted), MIN_SPLITS), limit)


def _power_of_2_from(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
