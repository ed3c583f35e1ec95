"""Prompts over shuffled blocks, and back ends whose time, rights and wrongs a test sets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from paceline_engine.attention.prefill.attention import Cache, Chunk, PagedPrefill, Prompts, Scores
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
) -> Cache:
    """Full of numbers, as no fresh cache is."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, num_blocks, BLOCK_SIZE, num_kv, size)
    keys, values = torch.randn(shape, generator=generator, dtype=dtype)
    return Cache(keys, values, None)


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
        tuple(Chunk(*chunk) for chunk in chunks),
        table,
        torch.tensor([0, *(tokens for tokens, _ in chunks)]).cumsum(0).to(torch.int32),
        torch.tensor([context for _, context in chunks], dtype=torch.int32),
        torch.tensor(slots + [-1] * padding),
        BLOCK_SIZE,
    )


def attended(q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
    """What is wanted: the reference's."""
    return reference_paged_prefill_attention(
        q,
        cache.keys,
        cache.values,
        prompts.block_table,
        prompts.cu_seqlens,
        prompts.context_lens,
        scores.scale,
        scores.window,
        scores.softcap,
    )


class KernelDouble(PagedPrefill):
    """Ours as on a GPU, where scores and sums are float32 whatever the type."""

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """Attend."""
        wide = Cache(cache.keys.float(), cache.values.float(), None)
        return attended(q.float(), wide, prompts, scores).to(q.dtype)


def _nothing(out: Tensor) -> Tensor:
    return out


@dataclass
class PrefillDouble:
    """A `PrefillAttention` that computes what ours does, in a time of its own."""

    name: str = "double"
    clock: ManualClock = field(default_factory=ManualClock)
    call_s: Callable[[int], float] = lambda _length: 1.0
    """By the longest of its chunks, rounded up to a class."""
    plan_s: float = 0.0
    """Once for each step's prompts and kind of layer."""
    wholes: bool = True
    laters: bool = True
    windows: bool = True
    spoil: Callable[[Tensor], Tensor] = _nothing
    """What it does to the right output."""
    needs: str = "a layer of its liking"
    length_s: float = 0.0
    """Once for each length that it sees."""
    lengths: set[int] = field(default_factory=set)
    planned: dict[Scores, Prompts] = field(default_factory=dict)
    served: list[tuple[Chunk, ...]] = field(default_factory=list)

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:
        """See `PrefillAttention`."""
        return self.wholes if all(chunk.is_whole for chunk in chunks) else self.laters

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:
        """See `PrefillAttention`."""
        return cache.exponents is None and (self.windows or scores.window is None)

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """See `PrefillAttention`."""
        assert self.serves(prompts.chunks)
        assert self.serves_layer(cache, scores)
        if self.planned.get(scores) is not prompts:
            self.clock.advance(self.plan_s)
        self.planned[scores] = prompts
        unseen = {chunk.tokens for chunk in prompts.chunks} - self.lengths
        self.clock.advance(self.length_s * len(unseen))
        self.lengths |= unseen
        self.served.append(prompts.chunks)
        # The longest: measured steps have shorter ones of their class, too.
        longest = max(chunk.tokens for chunk in prompts.chunks)
        self.clock.advance(self.call_s(1 << (longest - 1).bit_length()))
        return self.spoil(PagedPrefill()(q, cache, prompts, scores))

    def seconds_of(self, runs: Iterable[Callable[[], object]]) -> float:
        """In the place of a GPU's stopwatch."""

        def seconds(run: Callable[[], object]) -> float:
            before = self.clock()
            run()
            return self.clock() - before

        return median(map(seconds, runs))
