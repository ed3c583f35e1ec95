"""What prefill attention is called with: a step's prompts, one layer's cache, its scores."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from torch import Tensor

from paceline_kernels import paged_prefill_attention
from paceline_kernels.checks import Exponents


class PromptChunk(NamedTuple):
    """What a step computes of one prompt, as the host knows it."""

    tokens: int
    context: int
    """The chunk's tokens and all before it."""

    @property
    def is_whole(self) -> bool:
        """Nothing lies before the chunk."""
        return self.tokens == self.context


@dataclass(frozen=True)
class Prompts:
    """The chunks of a step, P of T tokens; every layer gets this one object."""

    chunks: tuple[PromptChunk, ...]  # [P]
    block_table: Tensor  # [P, blocks]
    cu_seqlens: Tensor  # [P + 1]: where each chunk begins in q, and the end
    context_lens: Tensor  # [P]
    slots: Tensor  # [T]: where each token's k and v lie
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Count T, without what pads the step."""
        return sum(chunk.tokens for chunk in self.chunks)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """The block and the offset of each token of a chunk; padding has none."""
        slots = self.slots[: self.num_tokens]
        return slots // self.block_size, slots % self.block_size


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer's keys and values, those of the step included."""

    keys: Tensor  # [blocks, block_size, num_kv_heads, head_size]
    values: Tensor  # as keys
    exponents: Exponents
    """Given where the cache is FP8."""


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """How one layer's scores become weights."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class PrefillAttention(Protocol):
    """Attends from each token of the chunks to itself and to all before it."""

    def __call__(
        self,
        q: Tensor,  # [T + padding, num_q_heads, head_size]
        cache: LayerCache,
        prompts: Prompts,
        rules: ScoreRules,
        out: Tensor | None = None,  # as q
        /,
    ) -> Tensor:
        """Return what each token attends to, shaped as q; in `out`, where it can."""
        ...


def our_prefill(
    q: Tensor,
    cache: LayerCache,
    prompts: Prompts,
    rules: ScoreRules,
    out: Tensor | None = None,
    /,
) -> Tensor:
    """Attend with our kernel, which serves every chunk and every layer.

    What it gives for padding is undefined.
    """
    return paged_prefill_attention(
        q,
        cache.keys,
        cache.values,
        prompts.block_table,
        prompts.cu_seqlens,
        prompts.context_lens,
        rules.scale,
        rules.window,
        rules.softcap,
        cache.exponents,
        out=out,
    )
