"""Prefill attention in plain torch: the ground truth."""

from itertools import pairwise

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.paged_kv.gathered import gathered


def paged_prefill_attention(
    q: Tensor,  # [tokens, num_q_heads, head_size]: the chunks, one after the other
    k_cache: Tensor,  # [blocks, block_size, num_kv_heads, head_size]
    v_cache: Tensor,  # as k_cache
    block_table: Tensor,  # [sequences, max_blocks] int32; read only as far as the context goes
    cu_seqlens: Tensor,  # [sequences + 1] int32: where each chunk starts in q, and the end
    context_lens: Tensor,  # [sequences] int32: the sequence's KV, its chunk included
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    exponents: Exponents = None,
    *,
    out: Tensor | None = None,  # as q
) -> Tensor:  # [tokens, num_q_heads, head_size]
    """Attend from each token to itself and all before it.

    Tokens before the first chunk are left alone, and a chunk may be empty; what tokens past the
    last one give is undefined. `window`: only to the last so many tokens,
    itself included. `softcap`: scores are kept within it, cap * tanh(score / cap). `exponents`:
    the caches hold FP8. `out` takes the result.
    """
    block_size = k_cache.shape[1]
    out = torch.zeros_like(q) if out is None else out
    chunks = pairwise(cu_seqlens.tolist())
    for row, ((start, end), length) in enumerate(zip(chunks, context_lens.tolist(), strict=True)):
        if start == end:
            continue
        blocks = block_table[row, : -(-length // block_size)]
        k, v = (  # [length, kv heads, size]
            cache.flatten(0, 1)[:length]
            for cache in gathered(k_cache, v_cache, blocks, exponents, dtype=q.dtype)
        )
        # Token i of the chunk stands at position length - (end - start) + i.
        visible = torch.ones(end - start, length, dtype=torch.bool, device=q.device)
        visible = visible.tril(diagonal=length - (end - start))
        if window is not None:
            visible = visible.triu(diagonal=length - (end - start) - window + 1)
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        scores = torch.einsum("thd,lhd->htl", q[start:end], k) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out[start:end] = torch.einsum("htl,lhd->thd", weights, v)
    return out
