"""What the answers of every endpoint have in common, and what an endpoint puts into words."""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from paceline_sidecar.generation import Delta, Generation, TokenScore


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(generations: list[Generation]) -> Usage:
    """Tokens read and written; a prompt counts once, however many choices it has."""
    prompt = sum(generation.counted_prompt_tokens for generation in generations)
    output = sum(generation.shown_tokens for generation in generations)
    firsts = [generation for generation in generations if generation.shape.index == 0]
    cached = sum(generation.cached_tokens for generation in firsts)
    return Usage(prompt, output, prompt + output, PromptDetails(cached))


@dataclass(slots=True)
class GatheredChoice:
    """One choice as it grows, for an answer in one piece."""

    generation: Generation
    text: str = ""
    scores: tuple[TokenScore, ...] = ()

    def add(self, delta: Delta) -> None:
        """Take in what one output gave."""
        self.text += delta.text
        self.scores += delta.scores


class ResponseBuilder(Protocol):
    """How one endpoint words what was generated; one for each request."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        ...

    def opening(self, count: int) -> list[msgspec.Struct]:
        """Chunks before the first text."""
        ...

    def piece(self, index: int, delta: Delta) -> msgspec.Struct | None:
        """One chunk of a stream; None when there is nothing to say yet."""
        ...

    def closing(self, usage: Usage) -> msgspec.Struct:
        """The chunk that carries the usage."""
        ...

    def whole(self, choices: list[GatheredChoice]) -> msgspec.Struct:
        """The answer in one piece."""
        ...
