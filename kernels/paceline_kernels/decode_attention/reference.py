"""Decode attention in plain torch: the ground truth."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def paged_decode_attention(
    q: Tensor,  # [rows, num_q_heads, head_size]
    k_cache: Tensor,  # [blocks, block_size, num_kv_heads, head_size]
    v_cache: Tensor,  # as k_cache
    block_table: Tensor,  # [rows, max_blocks] int32; read only as far as the context goes
    context_lens: Tensor,  # [rows] int32: tokens that the row attends to; 0 is a padding row
    scale: float,
) -> Tensor:  # [rows, num_q_heads, head_size]
    """Attend from each row's one query to its whole context; a padding row gives zeros."""
    _, block_size, num_kv_heads, head_size = k_cache.shape
    out = torch.zeros_like(q)
    for row, length in enumerate(context_lens.tolist()):
        if length == 0:
            continue
        blocks = block_table[row, : -(-length // block_size)]
        k = k_cache.index_select(0, blocks).flatten(0, 1)[:length]  # [length, kv heads, size]
        v = v_cache.index_select(0, blocks).flatten(0, 1)[:length]
        # The query heads that share a KV head are a group, and stand where a sequence would.
        group = q[row].view(num_kv_heads, -1, head_size)
        attended = F.scaled_dot_product_attention(
            group, k.transpose(0, 1), v.transpose(0, 1), scale=scale
        )
        out[row] = attended.reshape(-1, head_size)
    return out
