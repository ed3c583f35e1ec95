"""Varlen prefill attention in Triton, and its launcher.

A program takes some tokens of one chunk, for all query heads that share a KV head: its rows are
(token, head) pairs, so one KV tile serves the whole group. The grid follows from shapes alone:
each chunk wastes at most one program, which leaves at once, as do programs for tokens that are
no chunk's.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline_kernels.checks import FLOATS, MAX_GROUP, Exponents, expect, expect_caches
from paceline_kernels.dependent import dependent
from paceline_kernels.dependent.kernel import wait_for_earlier
from paceline_kernels.paged_kv.kernel import attend, nothing_seen
from paceline_kernels.prepared import Call, Calls, looks
from paceline_kernels.tuned import blocks_of

_CALLS = Calls()
MIN_SEQS = 256  # one compiled variant for every usual batch: nothing compiles while serving


# What changes from step to step is not compiled in, as for MIN_SEQS.
@triton.jit(
    do_not_specialize=["num_seqs", "table_stride"],
    do_not_specialize_on_alignment=["table_ptr", "cu_seqlens_ptr", "lens_ptr"],
)
def _prefill_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    k_exponents_ptr,  # None: no FP8
    v_exponents_ptr,
    table_ptr,
    cu_seqlens_ptr,
    lens_ptr,
    out_ptr,
    num_seqs,
    scale_log2,
    block_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SEQS: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_KV: tl.constexpr,
    COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_DEPENDENT: tl.constexpr = False,
):
    """Attend causally from TILE_Q // GROUP tokens of one chunk, for the heads of a group."""
    wait_for_earlier(IS_DEPENDENT)
    TOKENS: tl.constexpr = TILE_Q // GROUP
    # The last tokens of a chunk see most: what takes longest begins first.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)

    # Chunk s owns the programs from cu_seqlens[s] // TOKENS + s on: enough, whatever its length.
    candidate = tl.arange(0, SEQS)
    is_seq = candidate < num_seqs
    first_program = tl.load(cu_seqlens_ptr + candidate, mask=is_seq, other=0) // TOKENS + candidate
    seq = tl.sum((is_seq & (first_program <= program)).to(tl.int32), axis=0) - 1
    if seq < 0:  # its tokens lie before the first chunk
        return
    chunk_start = tl.load(cu_seqlens_ptr + seq)
    chunk_len = tl.load(cu_seqlens_ptr + seq + 1) - chunk_start
    first_token = (program - (chunk_start // TOKENS + seq)) * TOKENS
    if first_token >= chunk_len:
        return

    row = tl.arange(0, TILE_Q)
    columns = tl.arange(0, COLUMNS)
    token = first_token + row // GROUP
    is_token = (row < TOKENS * GROUP) & (token < chunk_len)
    head = (chunk_start + token).to(tl.int64) * NUM_KV_HEADS * GROUP + kv_head * GROUP + row % GROUP
    inside = is_token[:, None] & (columns < HEAD_SIZE)[None, :]
    at = head[:, None] * HEAD_SIZE + columns[None, :]
    q = tl.load(q_ptr + at, mask=inside, other=0.0)

    length = tl.load(lens_ptr + seq)
    # Rows past the chunk stand where its last token does: they see something, and store nothing.
    position = length - chunk_len + tl.minimum(token, chunk_len - 1)
    first_position = length - chunk_len + first_token
    end = tl.minimum(length, first_position + TOKENS)
    out, peak, total = nothing_seen(TILE_Q, COLUMNS)
    start = 0
    if WINDOW > 0:
        start = tl.maximum(first_position - WINDOW + 1, 0)
    else:
        # Up to the first row's own token, every row sees every token: no mask.
        start = (first_position + 1) // TILE_KV * TILE_KV
        out, peak, total = attend(
            out,
            peak,
            total,
            q,
            position,
            k_cache_ptr,
            v_cache_ptr,
            k_exponents_ptr,
            v_exponents_ptr,
            table_ptr + seq.to(tl.int64) * table_stride,
            0,
            start,
            block_stride,
            kv_head,
            scale_log2,
            NUM_KV_HEADS,
            HEAD_SIZE,
            BLOCK_SIZE,
            TILE_KV,
            COLUMNS,
            WINDOW,
            SOFTCAP,
            IS_WHOLE=True,
        )
    out, peak, total = attend(
        out,
        peak,
        total,
        q,
        position,
        k_cache_ptr,
        v_cache_ptr,
        k_exponents_ptr,
        v_exponents_ptr,
        table_ptr + seq.to(tl.int64) * table_stride,
        start,
        end,
        block_stride,
        kv_head,
        scale_log2,
        NUM_KV_HEADS,
        HEAD_SIZE,
        BLOCK_SIZE,
        TILE_KV,
        COLUMNS,
        WINDOW,
        SOFTCAP,
        IS_WHOLE=False,
    )
    out /= total[:, None]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def paged_prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    exponents: Exponents = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Launch over every tile of tokens and every KV head."""
    caches = (k_cache, v_cache, *(exponents or (None, None)))
    tables = (block_table, cu_seqlens, context_lens)
    key = _CALLS.key(window, softcap, *map(looks, (q, *caches, *tables, out)))
    call = _CALLS.get(key)
    if call is None:
        call = _checked(
            q,
            k_cache,
            v_cache,
            block_table,
            cu_seqlens,
            context_lens,
            window,
            softcap,
            exponents,
            out,
        )
        _CALLS.keep(key, call)
    out = torch.empty_like(q) if out is None else out
    call(
        (q, *caches, *tables, out),
        len(context_lens),
        scale * math.log2(math.e),
        k_cache.stride(0),
        block_table.stride(0),
    )
    return out


def _checked(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    window: int | None,
    softcap: float | None,
    exponents: Exponents,
    out: Tensor | None,
) -> Call:
    expect_caches(k_cache, v_cache, exponents, like=q)
    _, block_size, num_kv_heads, head_size = k_cache.shape
    expect("q", q, shape=("tokens", "num_q_heads", head_size), dtypes=FLOATS, like=q)
    num_tokens, num_q_heads, _ = q.shape
    num_seqs = len(context_lens)
    expect("context_lens", context_lens, shape=("sequences",), dtypes=(torch.int32,), like=q)
    expect("cu_seqlens", cu_seqlens, shape=(num_seqs + 1,), dtypes=(torch.int32,), like=q)
    expect("block_table", block_table, shape=(num_seqs, "blocks"), dtypes=(torch.int32,), like=q)
    group, rest = divmod(num_q_heads, num_kv_heads)
    if rest or not 1 <= group <= MAX_GROUP:
        raise ValueError(
            f"num_q_heads must be 1 to {MAX_GROUP} times num_kv_heads={num_kv_heads}, "
            f"got {num_q_heads}"
        )

    if out is not None:
        expect("out", out, shape=q.shape, dtypes=(q.dtype,), like=q)
    columns = max(16, triton.next_power_of_2(head_size))  # 16: the least that a dot takes
    tile = blocks_of(
        "prefill_attention",
        q.device,
        kv="own" if exponents is None else "fp8",
        bits=8 * q.element_size(),
        columns=columns,
        bounds="none" if (window, softcap, head_size) == (None, None, columns) else "some",
    )
    num_programs = num_tokens // (tile["rows"] // group) + num_seqs
    return Call(
        _prefill_kernel,
        (num_programs, num_kv_heads),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_SIZE=head_size,
        BLOCK_SIZE=block_size,
        SEQS=max(MIN_SEQS, triton.next_power_of_2(num_seqs)),
        TILE_Q=tile["rows"],
        TILE_KV=tile["tokens"],
        COLUMNS=columns,
        WINDOW=window or 0,
        SOFTCAP=softcap or 0.0,
        **dependent(q.device),
        num_warps=tile["num_warps"],
        num_stages=tile["num_stages"],
        enable_fp_fusion=True,
    )
