"""Steps of made-up prompts over a small cache of random values, to try and time SDPA on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from paceline_engine.attention.prefill.prompts import LayerCache, PromptChunk, Prompts

MAX_TOKENS = 10_240
"""What the cache holds at most: 40 MiB for 8 heads of 128 in two bytes."""
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Lengths of prompts that are timed; each stands for those up to the next."""
LATER_TOKENS = (256, 1024, 4096)
"""Tokens of later chunks that are timed, and below their context lengths."""
LATER_CONTEXTS = (2048, 8192, 32_768)
STEP_TOKENS = 2048
"""Tokens of a timed step: shorter prompts come together, as they do in a step."""
_UNSEEN_STEPS = 3
_UNSEEN = 8
"""Different lengths in a step; torch may compile for each, while the engine starts."""
_SEED = 5
_LOUD = 4.0
"""Factor on the queries: few keys then have most of the weight, so a missing one is noticed."""
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

    def step(self, chunks: Sequence[PromptChunk], padding: int = 0) -> TrialStep:
        """Lay chunks out over shuffled blocks; `padding` tokens belong to none of them.

        Where they need more blocks than there are, blocks are taken twice.
        """
        contexts = [chunk.context for chunk in chunks]
        counts = [-(-context // self.block_size) for context in contexts]
        shuffled = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(_SEED))
        blocks = shuffled[torch.arange(sum(counts)) % self.num_blocks]
        table = torch.zeros(len(chunks), max(counts), dtype=torch.int32)
        for row, mine in enumerate(blocks.split(counts)):
            table[row, : len(mine)] = mine
        slots = [self._slots(row, chunk) for row, chunk in zip(table, chunks, strict=True)]
        none = torch.full((padding,), -1)
        tokens = [chunk.tokens for chunk in chunks]
        prompts = Prompts(
            tuple(chunks),
            table.to(self._device),
            torch.tensor([0, *tokens]).cumsum(0).to(self._device, torch.int32),
            torch.tensor(contexts, dtype=torch.int32).to(self._device),
            torch.cat([*slots, none]).to(self._device),
            self.block_size,
        )
        q = self._random((sum(tokens) + padding, *self._heads))
        return TrialStep(_LOUD * q, self.cache, prompts)

    def _slots(self, row: Tensor, chunk: PromptChunk) -> Tensor:  # row [blocks] -> [tokens]
        token = torch.arange(chunk.context - chunk.tokens, chunk.context)
        return row[token // self.block_size].long() * self.block_size + token % self.block_size

    def _random(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=self._dtype, device=self._device)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step that is timed, for its own sake and for all that are like it."""

    chunks: tuple[PromptChunk, ...]
    unseen: tuple[tuple[PromptChunk, ...], ...]
    """Steps like it of sizes that are not timed: as a step's mostly are."""


def ragged_steps(cache: TrialCache, behind: int = 0) -> Iterator[TrialStep]:
    """Make steps of uneven prompts, together and alone, with padding.

    With `behind`, every second chunk, the first included, has as many tokens before it.
    """
    for lengths in ((1, 15, cache.block_size, 257, 100), (300,), tuple(range(1, 21))):
        chunks = []
        for place, length in enumerate(lengths):
            before = behind * (place % 2 == 0)
            context = min(length + before, cache.num_tokens)
            chunks.append(PromptChunk(min(length, max(1, context - before)), context))
        yield cache.step(chunks, _PADDING)


def timed_wholes(most: int) -> Iterator[TimedStep]:
    """Make a step of each length up to `most` tokens of a step.

    Up to `_UNSEEN` of an unseen step's prompts differ from one another; a step of one prompt comes
    in several.
    """
    for length in (length for length in LENGTHS if length <= most):
        count = max(1, min(STEP_TOKENS, most) // length)
        unseen = tuple(
            tuple(_whole(length - 1 - turn - place % _UNSEEN) for place in range(count))
            for turn in range(_UNSEEN_STEPS if count == 1 else 1)
        )
        yield TimedStep((_whole(length),) * count, unseen)


def timed_laters(most_tokens: int, most_context: int) -> Iterator[TimedStep]:
    """Make a step of one chunk for each size up to the most, and some that are a little smaller."""
    for tokens, context in product(LATER_TOKENS, LATER_CONTEXTS):
        if tokens <= most_tokens and tokens < context <= most_context:
            less = range(1, 1 + _UNSEEN_STEPS)
            unseen = tuple((PromptChunk(tokens - by, context - 2 * by),) for by in less)
            yield TimedStep((PromptChunk(tokens, context),), unseen)


def _whole(length: int) -> PromptChunk:
    return PromptChunk(length, length)
