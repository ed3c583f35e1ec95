"""Steps of made-up prompts over a small cache of random values, for back ends that are tried."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.attention.prefill.attention import Cache, Chunk, Prompts

MAX_TOKENS = 10_240
"""What the cache holds at most: 40 MiB of 8 heads of 128 in two bytes."""
_SEED = 5
_LOUD = 4.0
"""Of the queries: few keys then have most of the weight, so that a missing one is seen."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a back end is called with, but for the layer."""

    q: Tensor  # [T + padding, num_q_heads, head_size]
    cache: Cache
    prompts: Prompts


class Scratch:
    """A cache like a model's, but no larger than needed; it is freed with this object.

    `max_tokens` are those of the longest context; steps with more take blocks twice.
    """

    def __init__(self, like: Cache, num_q_heads: int, max_tokens: int = MAX_TOKENS) -> None:
        num_blocks, self.block_size, num_kv_heads, head_size = like.keys.shape
        self.num_blocks = min(num_blocks, -(-min(max_tokens, MAX_TOKENS) // self.block_size))
        self._heads = (num_q_heads, head_size)
        self._dtype, self._device = like.keys.dtype, like.keys.device
        self._generator = torch.Generator(self._device).manual_seed(_SEED)
        shape = (self.num_blocks, self.block_size, num_kv_heads, head_size)
        self.cache = Cache(self._random(shape), self._random(shape), None)

    @property
    def num_tokens(self) -> int:
        """The longest context without a block that comes twice."""
        return self.num_blocks * self.block_size

    def step(self, chunks: Sequence[Chunk], padding: int = 0) -> Step:
        """Lay prompts out over shuffled blocks; `padding` tokens belong to none of them."""
        counts = [-(-chunk.context // self.block_size) for chunk in chunks]
        shuffled = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(_SEED))
        blocks = shuffled[torch.arange(sum(counts)) % self.num_blocks]
        table = torch.zeros(len(chunks), max(counts), dtype=torch.int32)
        for row, mine in enumerate(blocks.split(counts)):
            table[row, : len(mine)] = mine
        slots = [self._slots(row, chunk) for row, chunk in zip(table, chunks, strict=True)]
        tokens = torch.tensor([0, *(chunk.tokens for chunk in chunks)])
        contexts = torch.tensor([chunk.context for chunk in chunks], dtype=torch.int32)
        none = torch.full((padding,), -1)
        prompts = Prompts(
            tuple(chunks),
            table.to(self._device),
            tokens.cumsum(0).to(self._device, torch.int32),
            contexts.to(self._device),
            torch.cat([*slots, none]).to(self._device),
            self.block_size,
        )
        q = self._random((int(tokens.sum()) + padding, *self._heads))
        return Step(_LOUD * q, self.cache, prompts)

    def _slots(self, row: Tensor, chunk: Chunk) -> Tensor:  # row [blocks] -> [tokens]
        token = torch.arange(chunk.context - chunk.tokens, chunk.context)
        return row[token // self.block_size].long() * self.block_size + token % self.block_size

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=self._dtype, device=self._device)
