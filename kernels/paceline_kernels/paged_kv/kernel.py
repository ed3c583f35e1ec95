"""Attention of a tile of queries over ranges of paged KV: the heart of both attention kernels."""

import triton
import triton.language as tl

from paceline_kernels.fp8.kernel import scale_of, widened


@triton.jit
def nothing_seen(TILE_Q: tl.constexpr, COLUMNS: tl.constexpr):
    """Return what `attend` begins with: no sum, no peak, no total."""
    out = tl.zeros([TILE_Q, COLUMNS], dtype=tl.float32)
    peak = tl.full([TILE_Q], float("-inf"), dtype=tl.float32)
    total = tl.zeros([TILE_Q], dtype=tl.float32)
    return out, peak, total


@triton.jit
def attend(
    out,  # [TILE_Q, COLUMNS] float32: what was summed over the ranges before
    peak,  # [TILE_Q] float32: the highest score so far, base 2
    total,  # [TILE_Q] float32: the sum of the weights
    q,  # [TILE_Q, COLUMNS]
    position,  # [TILE_Q]: the last token that each row of q may see, `start` or later
    k_cache_ptr,
    v_cache_ptr,
    k_exponents_ptr,  # None: no FP8
    v_exponents_ptr,
    table_ptr,  # of this sequence
    start,
    end,
    block_stride,
    kv_head,
    scale_log2,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KV: tl.constexpr,
    COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Go on over the tokens [start, end); return out, peak and total.

    Online softmax: `weights` are relative to the highest score so far, `peak`, and what was
    summed under a lower one is scaled down. WINDOW, unless 0, is how many tokens a row sees, the
    last one included. SOFTCAP, unless 0, keeps scores within it: cap * tanh(score / cap).
    IS_WHOLE: the range is whole tiles, and every row sees all of them.

    The table's entries for the next tile are loaded a round ahead: were they loaded in the round
    that uses them, the compiler could not begin to copy a tile before the one that it is used in.
    """
    IS_FP8: tl.constexpr = k_exponents_ptr is not None
    columns = tl.arange(0, COLUMNS)
    offsets = tl.arange(0, TILE_KV)

    block = _blocks_of(table_ptr, start + offsets, end, BLOCK_SIZE)
    if IS_FP8:
        # Exponents are too small for asynchronous copies, so they are loaded one iteration ahead.
        head_at = _head_at(block, start + offsets, kv_head, NUM_KV_HEADS, BLOCK_SIZE)
        k_exponent = tl.load(k_exponents_ptr + head_at, mask=start + offsets < end, other=127)
        v_exponent = tl.load(v_exponents_ptr + head_at, mask=start + offsets < end, other=127)

    for tile in range(start, end, TILE_KV):
        tokens = tile + offsets
        inside = tokens < end
        slot = _in_block(tokens, BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        at = (block.to(tl.int64) * block_stride + slot * HEAD_SIZE)[:, None] + columns[None, :]
        k = _tile_of(k_cache_ptr, at, inside, columns, HEAD_SIZE, COLUMNS, IS_WHOLE)
        v = _tile_of(v_cache_ptr, at, inside, columns, HEAD_SIZE, COLUMNS, IS_WHOLE)

        after = tokens + TILE_KV
        block = _blocks_of(table_ptr, after, end, BLOCK_SIZE)
        if IS_FP8:
            k, v = widened(k, q.dtype), widened(v, q.dtype)
            k_scale, v_scale = scale_of(k_exponent), scale_of(v_exponent)
            head_at = _head_at(block, after, kv_head, NUM_KV_HEADS, BLOCK_SIZE)
            k_exponent = tl.load(k_exponents_ptr + head_at, mask=after < end, other=127)
            v_exponent = tl.load(v_exponents_ptr + head_at, mask=after < end, other=127)

        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        if IS_FP8:
            scores *= k_scale[None, :]
        scores = _capped(scores, SOFTCAP)
        if not IS_WHOLE:
            scores = _seen(scores, tokens, position, WINDOW)
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        if WINDOW > 0:
            # A row whose window starts past this tile has seen nothing: no -inf - -inf.
            new_peak = tl.maximum(new_peak, -1e30)
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        if IS_FP8:
            if q.dtype == tl.float16:  # whose weights would fall below its least number
                v = (v.to(tl.float32) * v_scale[:, None]).to(tl.float16)
            else:
                weights *= v_scale[None, :]
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        peak = new_peak

    return out, peak, total


@triton.jit
def _blocks_of(table_ptr, tokens, end, BLOCK_SIZE: tl.constexpr):
    """Look up the blocks of the tokens that are before the end."""
    block = (tokens.to(tl.uint32) // BLOCK_SIZE).to(tl.int32)
    return tl.load(table_ptr + block, mask=tokens < end, other=0)


@triton.jit
def _in_block(tokens, BLOCK_SIZE: tl.constexpr):
    """Give the places of tokens in their blocks.

    Without a sign, which no token has, a place follows from some bits of the number.
    """
    return (tokens.to(tl.uint32) % BLOCK_SIZE).to(tl.int32)


@triton.jit
def _tile_of(
    cache_ptr,
    at,  # [TILE_KV, COLUMNS]
    inside,  # [TILE_KV]
    columns,  # [COLUMNS]
    HEAD_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    """Load keys or values: zeros past the end, not what lies there.

    NaN would reach the sum through a weight of 0.
    """
    if not IS_WHOLE:
        mask = inside[:, None] & (columns < HEAD_SIZE)[None, :]
        return tl.load(cache_ptr + at, mask=mask, other=0.0)
    elif HEAD_SIZE != COLUMNS:  # noqa: RET505 - decided when it is compiled
        return tl.load(cache_ptr + at, mask=(columns < HEAD_SIZE)[None, :], other=0.0)
    else:
        return tl.load(cache_ptr + at)


@triton.jit
def _capped(scores, SOFTCAP: tl.constexpr):
    """Keep scores in base 2 within the cap, unless it is 0."""
    if SOFTCAP > 0:
        CAP: tl.constexpr = SOFTCAP * 1.4426950408889634
        # tanh(x) = 2 * sigmoid(2 * x) - 1
        scores = CAP * (2.0 * tl.sigmoid(2.0 / CAP * scores) - 1.0)
    return scores


@triton.jit
def _seen(scores, tokens, position, WINDOW: tl.constexpr):
    """Rule out the tokens that a row does not see."""
    visible = tokens[None, :] <= position[:, None]
    if WINDOW > 0:
        visible = visible & (tokens[None, :] > position[:, None] - WINDOW)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _head_at(block, tokens, kv_head, NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Give where the exponents of the tokens' head lie."""
    # Signed: otherwise prefill over FP8 spills on 9.0.
    slot = (tokens % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
    return block.to(tl.int64) * (BLOCK_SIZE * NUM_KV_HEADS) + slot
