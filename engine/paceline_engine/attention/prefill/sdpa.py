"""Prefill attention by torch's SDPA: on a GPU cuDNN's or FlashAttention's, which torch brings.

It knows no block tables. The keys and values of a whole prompt are the step's own, read back from
where the step has just stored them; those of a later chunk are gathered from their blocks, one
prompt at a time, into a buffer of its whole context.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline_engine.attention.prefill.prompts import LayerCache, PromptChunk, Prompts, ScoreRules
from paceline_kernels.paged_kv.gathered import gathered

NEEDS = "a layer without a window, a soft cap or FP8"
"""What `serves_layer` wants, for messages."""
MOST_GATHERED = 32_768
"""Tokens of a context that are gathered at most: 128 MiB for 8 heads of 128 in two bytes."""
_flash_attention = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001 - see `_attend`
# Torch would fall back to an implementation that writes all scores to memory.
_FAST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


class NoFastAttentionError(Exception):
    """Torch has no fast attention for such heads on this device."""


def are_whole(chunks: tuple[PromptChunk, ...]) -> bool:
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
    out = torch.zeros_like(q) if out is None else out
    stored = _stored(cache, prompts) if are_whole(prompts.chunks) else None
    start = 0
    for row, chunk in enumerate(prompts.chunks):
        rows = slice(start, start + chunk.tokens)
        if stored is None:
            out[rows] = _attend_behind(q[rows], cache, prompts, row, rules.scale)
        else:
            out[rows] = _attend(q[rows], stored[0][rows], stored[1][rows], rules.scale)
        start += chunk.tokens
    return out


def _stored(cache: LayerCache, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """Read back what the step's tokens have stored: each [T, kv heads, size]."""
    blocks, offsets = prompts.places
    return cache.keys[blocks, offsets], cache.values[blocks, offsets]


def _attend_behind(
    q: Tensor, cache: LayerCache, prompts: Prompts, row: int, scale: float
) -> Tensor:
    """Attend from a chunk's tokens; what was gathered for it is free when this returns."""
    context = prompts.chunks[row].context
    blocks = prompts.block_table[row, : -(-context // prompts.block_size)]
    k, v = gathered(cache.keys, cache.values, blocks, None, dtype=cache.keys.dtype)
    return _attend(q, k.flatten(0, 1)[:context], v.flatten(0, 1)[:context], scale)


def _attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attend from the last tokens of a context [context, heads, size], which are q's."""
    tokens, context = len(q), len(k)
    heads_first = _heads_first(q), _heads_first(k), _heads_first(v)
    has_groups = q.shape[1] != k.shape[1]
    try:
        if tokens == context:
            with sdpa_kernel(_FAST) if q.is_cuda else nullcontext():
                attended = functional.scaled_dot_product_attention(
                    *heads_first, is_causal=True, scale=scale, enable_gqa=has_groups
                )  # [1, heads, tokens, size]
        elif q.is_cuda:
            # SDPA's `is_causal` aligns the mask with the first key, FlashAttention's with the last.
            # `causal_lower_right` leads here too, but to all scores in memory where this refuses.
            # To import it also loads torch's compiler, which takes as long as torch itself.
            attended, *_ = _flash_attention(*heads_first, is_causal=True, scale=scale)
        else:
            attended = functional.scaled_dot_product_attention(
                *heads_first,
                attn_mask=_seen(tokens, context, q.device),
                scale=scale,
                enable_gqa=has_groups,
            )
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise NoFastAttentionError("torch has no fast attention for such heads") from error
        raise
    return attended[0].transpose(0, 1)


def _seen(tokens: int, context: int, device: torch.device) -> Tensor:  # [tokens, context]
    """Tell which keys each of the last tokens sees: those up to its own."""
    return torch.ones(tokens, context, dtype=torch.bool, device=device).tril(context - tokens)


def _heads_first(x: Tensor) -> Tensor:  # [tokens, heads, size] -> [1, heads, tokens, size]
    return x.transpose(0, 1).unsqueeze(0)
