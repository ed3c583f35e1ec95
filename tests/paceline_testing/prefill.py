"""Prompts over shuffled blocks, and a prefill attention whose time and mistakes a test sets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PromptChunk,
    Prompts,
    ScoreRules,
    our_prefill,
)
from paceline_engine.core.model_config import ModelConfig, Rope
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_testing.clock import ManualClock

BLOCK_SIZE = 4
CONFIG = ModelConfig(
    family="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=64,
    num_q_heads=4,
    num_kv_heads=2,
    head_size=16,
    vocab_size=10,
    max_len=16,
    norm_eps=1e-5,
    rope=Rope(theta=1e4),
    tied_head=True,
)


def a_cache(
    num_blocks: int = 1100, num_kv: int = 2, size: int = 16, dtype: torch.dtype = torch.float32
) -> LayerCache:
    """Full of numbers, as no fresh cache is."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, num_blocks, BLOCK_SIZE, num_kv, size)
    keys, values = torch.randn(shape, generator=generator, dtype=dtype)
    return LayerCache(keys, values, None)


def some_queries(num_tokens: int, num_q: int, size: int, dtype: torch.dtype) -> Tensor:
    """Drawn alike for every test."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn((num_tokens, num_q, size), generator=generator, dtype=dtype)


def prompts_of(chunks: Sequence[tuple[int, int]], num_blocks: int, padding: int = 0) -> Prompts:
    """Chunks of (tokens, context), over shuffled blocks that no two of them share."""
    shuffled = iter(torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist())
    longest = max(context for _, context in chunks)
    table = torch.zeros(len(chunks), -(-longest // BLOCK_SIZE), dtype=torch.int32)
    slots: list[int] = []
    for row, (tokens, context) in enumerate(chunks):
        blocks = [next(shuffled) for _ in range(-(-context // BLOCK_SIZE))]
        table[row, : len(blocks)] = torch.tensor(blocks)
        slots += [
            blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE
            for i in range(context - tokens, context)
        ]
    return Prompts(
        tuple(PromptChunk(*chunk) for chunk in chunks),
        table,
        torch.tensor([0, *(tokens for tokens, _ in chunks)]).cumsum(0).to(torch.int32),
        torch.tensor([context for _, context in chunks], dtype=torch.int32),
        torch.tensor(slots + [-1] * padding),
        BLOCK_SIZE,
    )


def attended(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    """What is wanted: the reference's."""
    return reference_paged_prefill_attention(
        q,
        cache.keys,
        cache.values,
        prompts.block_table,
        prompts.cu_seqlens,
        prompts.context_lens,
        rules.scale,
        rules.window,
        rules.softcap,
    )


def kernel_double(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    """Ours as on a GPU, where scores and sums are float32 whatever the type."""
    wide = LayerCache(cache.keys.float(), cache.values.float(), None)
    return attended(q.float(), wide, prompts, rules).to(q.dtype)


def _nothing(out: Tensor) -> Tensor:
    return out


@dataclass
class PrefillDouble:
    """A `PrefillAttention` that computes what ours does, in a time of its own."""

    clock: ManualClock = field(default_factory=ManualClock)
    call_s: Callable[[int], float] = lambda _length: 1.0
    """By the longest of its chunks, rounded up to a class."""
    spoil: Callable[[Tensor], Tensor] = _nothing
    """What it does to the right output."""
    length_s: float = 0.0
    """Once for each length that it sees."""
    lengths: set[int] = field(default_factory=set)
    served: list[tuple[PromptChunk, ...]] = field(default_factory=list)

    def __call__(
        self,
        q: Tensor,
        cache: LayerCache,
        prompts: Prompts,
        rules: ScoreRules,
        _out: Tensor | None = None,
        /,
    ) -> Tensor:
        """Attend."""
        unseen = {chunk.tokens for chunk in prompts.chunks} - self.lengths
        self.clock.advance(self.length_s * len(unseen))
        self.lengths |= unseen
        self.served.append(prompts.chunks)
        # The longest: measured steps have shorter ones of their class, too.
        longest = max(chunk.tokens for chunk in prompts.chunks)
        self.clock.advance(self.call_s(1 << (longest - 1).bit_length()))
        return self.spoil(our_prefill(q, cache, prompts, rules))

    def seconds_of(self, runs: Iterable[Callable[[], object]]) -> float:
        """In the place of a GPU's stopwatch."""

        def seconds(run: Callable[[], object]) -> float:
            before = self.clock()
            run()
            return self.clock() - before

        return median(map(seconds, runs))
