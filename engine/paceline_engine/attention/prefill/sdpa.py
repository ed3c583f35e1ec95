"""Prefill attention by torch's SDPA: on a GPU cuDNN's or FlashAttention's, which torch brings.

It knows no block tables, so it serves only whole prompts, whose keys and values are the step's
own; they are read back from where the step has just stored them.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline_engine.attention.prefill.prompts import LayerCache, PromptChunk, Prompts, ScoreRules

NEEDS = "a layer without a window, a soft cap or FP8"
"""What `serves_layer` wants, for messages."""
# Torch would fall back to an implementation that writes all scores to memory.
_FAST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


class NoFastAttentionError(Exception):
    """Torch has no fast attention for such heads on this device."""


def serves(chunks: tuple[PromptChunk, ...]) -> bool:
    """Tell whether every chunk is a whole prompt."""
    return all(chunk.is_whole for chunk in chunks)


def serves_layer(cache: LayerCache, rules: ScoreRules) -> bool:
    """Tell whether the layer has neither a window nor a soft cap, and a cache that is not FP8."""
    is_plain = rules.window is None and rules.softcap is None
    return is_plain and cache.exponents is None


def sdpa_prefill(
    q: Tensor,
    cache: LayerCache,
    prompts: Prompts,
    rules: ScoreRules,
    out: Tensor | None = None,
    /,
) -> Tensor:
    """Attend, one call a prompt; padding gives zeros. Raises NoFastAttentionError."""
    blocks, offsets = prompts.places
    k, v = cache.keys[blocks, offsets], cache.values[blocks, offsets]  # [T, kv heads, size]
    out = torch.zeros_like(q) if out is None else out
    start = 0
    with _only_fast(q):
        for tokens, _ in prompts.chunks:
            rows = slice(start, start + tokens)
            out[rows] = _attend(q[rows], k[rows], v[rows], rules.scale)
            start += tokens
    return out


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:  # all [tokens, heads, size]
    try:
        attended = functional.scaled_dot_product_attention(
            _heads_first(q),
            _heads_first(k),
            _heads_first(v),
            is_causal=True,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # [1, heads, tokens, size]
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise NoFastAttentionError("torch has no fast attention for such heads") from error
        raise
    return attended[0].transpose(0, 1)


def _heads_first(x: Tensor) -> Tensor:  # [tokens, heads, size] -> [1, heads, tokens, size]
    return x.transpose(0, 1).unsqueeze(0)


def _only_fast(q: Tensor) -> AbstractContextManager[object]:
    return sdpa_kernel(_FAST) if q.is_cuda else nullcontext()
