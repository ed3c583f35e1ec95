"""Steps of made-up whole prompts over a small cache of random values, to try and time SDPA on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.attention.prefill.prompts import LayerCache, PromptChunk, Prompts

MAX_TOKENS = 10_240
"""What the cache holds at most: 40 MiB for 8 heads of 128 in two bytes."""
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Lengths of prompts that are timed; each stands for those up to the next."""
STEP_TOKENS = 2048
"""Tokens of a timed step: shorter prompts come together, as they do in a step."""
_UNSEEN_STEPS = 3
_UNSEEN = 8
"""Different lengths in a step; torch may compile for each, while the engine starts."""
_SEED = 5
_LOUD = 4.0
"""Factor on the queries: few keys then have most of the weight, so that a missing one is seen."""
_PADDING = 3


@dataclass(frozen=True, slots=True)
class TrialStep:
    """What prefill attention is called with, except for the layer's rules."""

    q: Tensor  # [T + padding, num_q_heads, head_size]
    cache: LayerCache
    prompts: Prompts


class TrialCache:
    """A cache like a model's, no larger than a trial needs; it is freed with this object."""

    def __init__(self, like: LayerCache, num_q_heads: int) -> None:
        num_blocks, self.block_size, num_kv_heads, head_size = like.keys.shape
        self.num_blocks = min(num_blocks, -(-MAX_TOKENS // self.block_size))
        self._heads = (num_q_heads, head_size)
        self._dtype, self._device = like.keys.dtype, like.keys.device
        self._generator = torch.Generator(self._device).manual_seed(_SEED)
        shape = (self.num_blocks, self.block_size, num_kv_heads, head_size)
        self.cache = LayerCache(self._random(shape), self._random(shape), None)

    @property
    def num_tokens(self) -> int:
        """The longest prompt that needs no block twice."""
        return self.num_blocks * self.block_size

    def step(self, lengths: Sequence[int], padding: int = 0) -> TrialStep:
        """Lay whole prompts out over shuffled blocks; `padding` tokens belong to none of them.

        Where they need more blocks than there are, blocks are taken twice.
        """
        counts = [-(-length // self.block_size) for length in lengths]
        shuffled = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(_SEED))
        blocks = shuffled[torch.arange(sum(counts)) % self.num_blocks]
        table = torch.zeros(len(lengths), max(counts), dtype=torch.int32)
        for row, mine in enumerate(blocks.split(counts)):
            table[row, : len(mine)] = mine
        slots = [self._slots(row, length) for row, length in zip(table, lengths, strict=True)]
        none = torch.full((padding,), -1)
        prompts = Prompts(
            tuple(PromptChunk(length, length) for length in lengths),
            table.to(self._device),
            torch.tensor([0, *lengths]).cumsum(0).to(self._device, torch.int32),
            torch.tensor(lengths, dtype=torch.int32).to(self._device),
            torch.cat([*slots, none]).to(self._device),
            self.block_size,
        )
        q = self._random((sum(lengths) + padding, *self._heads))
        return TrialStep(_LOUD * q, self.cache, prompts)

    def _slots(self, row: Tensor, length: int) -> Tensor:  # row [blocks] -> [length]
        token = torch.arange(length)
        return row[token // self.block_size].long() * self.block_size + token % self.block_size

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=self._dtype, device=self._device)


def ragged_steps(cache: TrialCache) -> Iterator[TrialStep]:
    """Make steps of uneven prompts, together and alone, with padding."""
    for lengths in ((1, 15, cache.block_size, 257, 100), (300,), tuple(range(1, 21))):
        yield cache.step([min(length, cache.num_tokens) for length in lengths], _PADDING)


def timed_lengths(most: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Give each length up to `most` tokens of a step, and the prompts that it is timed by."""
    for length in (length for length in LENGTHS if length <= most):
        yield length, (length,) * max(1, min(STEP_TOKENS, most) // length)


def unseen(lengths: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Give steps like this one, of lengths that are not timed: as a step's lengths mostly are.

    Up to `_UNSEEN` of the prompts differ from one another; a step of one prompt comes in several.
    """
    for turn in range(_UNSEEN_STEPS if len(lengths) == 1 else 1):
        yield tuple(length - 1 - turn - place % _UNSEEN for place, length in enumerate(lengths))
