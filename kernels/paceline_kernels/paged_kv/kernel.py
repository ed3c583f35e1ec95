"""Attention of a tile of queries over a range of paged KV: the heart of both attention kernels."""

import triton
import triton.language as tl

from paceline_kernels.fp8.kernel import scale_of, widened


@triton.jit
def attend(
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
    TILE_Q: tl.constexpr,
    TILE_KV: tl.constexpr,
    COLUMNS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Return softmax(scale * q k) v over the tokens [start, end), and its log-sum-exp in base 2.

    Online softmax: `weights` are relative to the highest score so far, `peak`, and what was
    summed under a lower one is scaled down. WINDOW, unless 0, is how many tokens a row sees, the
    last one included. SOFTCAP, unless 0, keeps scores within it: cap * tanh(score / cap).
    """
    SOFTCAP_LOG2: tl.constexpr = SOFTCAP * 1.4426950408889634
    columns = tl.arange(0, COLUMNS)
    out = tl.zeros([TILE_Q, COLUMNS], dtype=tl.float32)
    peak = tl.full([TILE_Q], float("-inf"), dtype=tl.float32)
    total = tl.zeros([TILE_Q], dtype=tl.float32)

    for tile in range(start, end, TILE_KV):
        tokens = tile + tl.arange(0, TILE_KV)
        inside = tokens < end
        block = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        slot = (tokens % BLOCK_SIZE) * NUM_KV_HEADS + kv_head
        at = (block * block_stride + slot * HEAD_SIZE)[:, None] + columns[None, :]
        # Zeros past the end, not what lies there: NaN would reach the sum through a weight of 0.
        loaded = inside[:, None] & (columns < HEAD_SIZE)[None, :]
        k = tl.load(k_cache_ptr + at, mask=loaded, other=0.0)
        v = tl.load(v_cache_ptr + at, mask=loaded, other=0.0)

        if k_exponents_ptr is not None:
            k, v = widened(k, q.dtype), widened(v, q.dtype)
            head_at = block * (BLOCK_SIZE * NUM_KV_HEADS) + slot
            k_scale = scale_of(tl.load(k_exponents_ptr + head_at, mask=inside, other=127))
            v_scale = scale_of(tl.load(v_exponents_ptr + head_at, mask=inside, other=127))
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        if k_exponents_ptr is not None:
            scores *= k_scale[None, :]
        if SOFTCAP > 0:
            # tanh(x) = 2 * sigmoid(2 * x) - 1
            tanh = 2.0 * tl.sigmoid(2.0 / SOFTCAP_LOG2 * scores) - 1.0
            scores = SOFTCAP_LOG2 * tanh
        visible = tokens[None, :] <= position[:, None]
        if WINDOW > 0:
            visible = visible & (tokens[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        if WINDOW > 0:
            # A row whose window starts past this tile has seen nothing: no -inf - -inf.
            new_peak = tl.maximum(new_peak, -1e30)
        shrink = tl.exp2(peak - new_peak)
        weights = tl.exp2(scores - new_peak[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        if k_exponents_ptr is not None:
            if q.dtype == tl.float16:  # whose weights would fall below its least number
                v = (v.to(tl.float32) * v_scale[:, None]).to(tl.float16)
            else:
                weights *= v_scale[None, :]
        out = tl.dot(weights.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
        peak = new_peak

    return out / total[:, None], peak + tl.log2(total)
