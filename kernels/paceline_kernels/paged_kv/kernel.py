"""A tile of paged KV, and one step of the online softmax, for the attention kernels."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    cache_ptr,
    table_ptr,
    tokens,
    end,
    block_stride,
    kv_head,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Load one KV head of `tokens` through a sequence's block table; zeros from `end` on.

    Zeros, not whatever lies there: 0 * NaN would reach the sum through a weight of zero.
    """
    inside = tokens < end
    block = tl.load(table_ptr + tokens // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    token_at = block * block_stride + (tokens % BLOCK_SIZE) * NUM_KV_HEADS * HEAD_SIZE
    columns = tl.arange(0, COLUMNS)
    at = token_at[:, None] + kv_head * HEAD_SIZE + columns[None, :]
    return tl.load(cache_ptr + at, mask=inside[:, None] & (columns < HEAD_SIZE)[None, :], other=0.0)


@triton.jit
def attend(q, k, v, visible, scale_log2, out, peak, total):
    """One step of the online softmax, in base 2: out = sum(p * v), total = sum(p).

    p = 2 ** (scale_log2 * q k - peak), and what was summed under a lower peak is scaled down.
    Each row must see a token of the first tile, or its peak stays -inf and its sum NaN.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    scores = tl.where(visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    shrink = tl.exp2(peak - new_peak)
    weights = tl.exp2(scores - new_peak[:, None])
    total = total * shrink + tl.sum(weights, axis=1)
    out = out * shrink[:, None]
    out = tl.dot(weights.to(v.dtype), v, out, input_precision="ieee")
    return out, new_peak, total
