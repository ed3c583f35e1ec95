"""Prompts by torch's own attention: on a GPU that of cuDNN or FlashAttention, which torch brings.

It knows no block tables, so it serves whole prompts alone, whose keys and values are the step's
own; they are read back from where the step has just stored them.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from paceline_engine.attention.prefill.attention import Cache, Chunk, Prompts, RefusedError, Scores

# Without them torch would fall back to one that writes all scores to memory.
_FAST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


class SdpaPrefill:
    """Implements `PrefillAttention`: one call a prompt."""

    name = "sdpa"
    needs = "a layer without a window, a soft cap or FP8"

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:
        """Whole prompts: where some of a context lies in other blocks alone, ours is asked."""
        return all(chunk.is_whole for chunk in chunks)

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:
        """Neither windows, nor soft caps, nor FP8: torch has none of them in its fast ones."""
        is_plain = scores.window is None and scores.softcap is None
        return is_plain and cache.exponents is None

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """See `PrefillAttention`."""
        blocks, offsets = prompts.places
        k, v = cache.keys[blocks, offsets], cache.values[blocks, offsets]  # [T, kv heads, size]
        out = torch.zeros_like(q)
        start = 0
        with _fast_ones(q):
            for tokens, _ in prompts.chunks:
                rows = slice(start, start + tokens)
                out[rows] = _attend(q[rows], k[rows], v[rows], scores.scale)
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
            raise RefusedError("torch has no fast attention for such heads here") from error
        raise
    return attended[0].transpose(0, 1)


def _heads_first(x: Tensor) -> Tensor:  # [tokens, heads, size] -> [1, heads, tokens, size]
    return x.transpose(0, 1).unsqueeze(0)


def _fast_ones(q: Tensor) -> AbstractContextManager[object]:
    return sdpa_kernel(_FAST) if q.is_cuda else nullcontext()
