"""QK norm, rotary embedding and the KV write in plain torch: the ground truth."""

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.fp8 import quantize_heads
from paceline_kernels.norm.reference import rms_norm


def rope_and_store_kv(
    qkv: Tensor,  # [tokens, (num_q_heads + 2 * num_kv_heads) * head_size]
    positions: Tensor,  # [tokens] int64
    cos_sin: Tensor,  # [max_len, head_size]: cosines in the first half, sines in the second
    slots: Tensor,  # [tokens] int64: block * block_size + offset, or -1 to store nothing
    k_cache: Tensor,  # [blocks, block_size, num_kv_heads, head_size]
    v_cache: Tensor,  # as k_cache
    *,
    num_q_heads: int,
    num_kv_heads: int,
    q_norm: Tensor | None = None,  # [head_size]
    k_norm: Tensor | None = None,  # [head_size]
    eps: float = 1e-6,
    exponents: Exponents = None,
) -> Tensor:  # [tokens, num_q_heads, head_size]
    """Rotate q and k to their positions, write k and v to their slots, return q.

    `q_norm` and `k_norm`, where given, are an RMSNorm of each head before its rotation. With
    `exponents`, which are written too, the caches hold FP8: see `paceline_kernels.fp8`.
    """
    head_size = k_cache.shape[-1]
    heads = qkv.view(-1, num_q_heads + 2 * num_kv_heads, head_size)
    q, k, v = torch.split(heads, [num_q_heads, num_kv_heads, num_kv_heads], dim=1)
    q = q if q_norm is None else rms_norm(q, q_norm, eps)
    k = k if k_norm is None else rms_norm(k, k_norm, eps)

    angles = cos_sin[positions].unsqueeze(1)
    k_exponents, v_exponents = exponents or (None, None)
    _store(_rotate(k, angles), slots, k_cache, k_exponents)
    _store(v, slots, v_cache, v_exponents)
    return _rotate(q, angles)


def _rotate(x: Tensor, angles: Tensor) -> Tensor:  # [tokens, heads, size], [tokens, 1, size]
    """Turn each pair (x[i], x[i + size / 2]) by its angle."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    first, second = wide.chunk(2, dim=-1)
    cos, sin = angles.to(wide.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def _store(rows: Tensor, slots: Tensor, cache: Tensor, exponents: Tensor | None) -> None:
    """Write each row with a slot to it."""
    stored = slots >= 0
    block_size = cache.shape[1]
    blocks, offsets = slots[stored] // block_size, slots[stored] % block_size
    if exponents is None:
        cache[blocks, offsets] = rows[stored].to(cache.dtype)
    else:
        cache[blocks, offsets], exponents[blocks, offsets] = quantize_heads(rows[stored])
