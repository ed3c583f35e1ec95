"""Blocks of both caches side by side, as numbers to compute with."""

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.fp8 import dequantize_heads


def gathered(
    k_cache: Tensor,  # [blocks, block_size, num_kv_heads, head_size]
    v_cache: Tensor,  # as k_cache
    blocks: Tensor,  # [P]
    exponents: Exponents,
    *,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # each [P, block_size, num_kv_heads, head_size]
    """Copy the blocks named; what is FP8 becomes `dtype`."""
    k, v = k_cache.index_select(0, blocks), v_cache.index_select(0, blocks)
    if exponents is None:
        return k, v
    k_exponents, v_exponents = (each.index_select(0, blocks) for each in exponents)
    return dequantize_heads(k, k_exponents, dtype), dequantize_heads(v, v_exponents, dtype)
