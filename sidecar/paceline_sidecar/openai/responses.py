"""What the responses of every endpoint have in common, and the port that builds them."""

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
    """Count the tokens read and written; a prompt counts once, however many choices it has."""
    prompt = sum(generation.counted_prompt_tokens for generation in generations)
    output = sum(generation.shown_tokens for generation in generations)
    firsts = [generation for generation in generations if generation.shape.index == 0]
    cached = sum(generation.cached_tokens for generation in firsts)
    return Usage(prompt, output, prompt + output, PromptDetails(cached))


@dataclass(slots=True)
class GatheredChoice:
    """One choice as it grows, for a response in one piece."""

    generation: Generation
    text: str = ""
    scores: tuple[TokenScore, ...] = ()

    def add(self, delta: Delta) -> None:
        """Add what one output gave."""
        self.text += delta.text
        self.scores += delta.scores


class ResponseBuilder(Protocol):
    """Builds the responses of one request in the shape of its endpoint."""

    @property
    def include_usage(self) -> bool:
        """Return whether a stream ends with its usage."""
        ...

    def first_chunks(self, count: int) -> list[msgspec.Struct]:
        """Return the chunks before the first text."""
        ...

    def chunk(self, index: int, delta: Delta) -> msgspec.Struct | None:
        """Return one chunk of a stream; None where there is nothing to send yet."""
        ...

    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """Return the chunk that holds the usage."""
        ...

    def response(self, choices: list[GatheredChoice]) -> msgspec.Struct:
        """Return the response in one piece."""
        ...
