"""PrefillAttention (Protocol): who attends for the prompts of a step; and our own kernel as one."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

from torch import Tensor

from paceline_kernels import paged_prefill_attention
from paceline_kernels.checks import Exponents


class RefusedError(Exception):
    """A back end says that it cannot serve here: it is not installed, or has no such kernel."""


class Chunk(NamedTuple):
    """What a step computes of one prompt, as the host knows it."""

    tokens: int
    context: int
    """Tokens with those before the chunk."""

    @property
    def is_whole(self) -> bool:
        """Nothing lies before it."""
        return self.tokens == self.context


@dataclass(frozen=True)
class Prompts:
    """The chunks of a step, P of T tokens; every layer has the same, in one object."""

    chunks: tuple[Chunk, ...]  # [P]
    block_table: Tensor  # [P, blocks]
    cu_seqlens: Tensor  # [P + 1], from 0
    context_lens: Tensor  # [P]
    slots: Tensor  # [T]: where each token's k and v lie
    block_size: int

    @property
    def num_tokens(self) -> int:
        """T, without what pads the step."""
        return sum(chunk.tokens for chunk in self.chunks)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Block and offset of each token of a chunk; what pads the step has none."""
        slots = self.slots[: self.num_tokens]
        return slots // self.block_size, slots % self.block_size


@dataclass(frozen=True, slots=True)
class Cache:
    """One layer's keys and values, those of the step among them."""

    keys: Tensor  # [blocks, block_size, num_kv_heads, head_size]
    values: Tensor  # as keys
    exponents: Exponents
    """Where they are kept in FP8."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How one layer's scores become weights."""

    scale: float
    window: int | None = None
    softcap: float | None = None


class PrefillAttention(Protocol):
    """Attends from each token of the chunks to itself and all before it."""

    @property
    def name(self) -> str:
        """As the settings and the log call it."""
        ...

    @property
    def needs(self) -> str:
        """What a layer must be like, in words: for who asked for it in vain."""
        ...

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:
        """Whether it can attend for such chunks."""
        ...

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:
        """Whether it can attend over such a layer."""
        ...

    def __call__(
        self,
        q: Tensor,  # [T + padding, num_q_heads, head_size]
        cache: Cache,
        prompts: Prompts,
        scores: Scores,
    ) -> Tensor:  # as q
        """Attend; what pads the step gets zeros.

        What is worked out of a step's prompts may be kept for its other layers, which bring the
        same object. Raises RefusedError where there is no kernel for such heads.
        """
        ...


class PagedPrefill:
    """Our kernel: every chunk and every layer."""

    name = "triton"
    needs = "any layer"

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:  # noqa: ARG002 - it serves any
        """See `PrefillAttention`."""
        return True

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:  # noqa: ARG002 - as above
        """See `PrefillAttention`."""
        return True

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """See `PrefillAttention`."""
        return paged_prefill_attention(
            q,
            cache.keys,
            cache.values,
            prompts.block_table,
            prompts.cu_seqlens,
            prompts.context_lens,
            scores.scale,
            scores.window,
            scores.softcap,
            cache.exponents,
        )
