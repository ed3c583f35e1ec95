"""Responses as the OpenAI API defines them: one voice for completions, one for chat."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from paceline_sidecar.generation import FinishReason, Generation


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TextChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, whole or a piece of it."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant said."""

    role: Literal["assistant"]
    content: str


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the assistant goes on to say."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """The one choice of a whole chat completion."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason | None
    logprobs: None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """The one choice of a piece of a chat completion."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None
    logprobs: None = None


class Answer(msgspec.Struct, frozen=True):
    """Every kind of answer, whole or chunk."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[TextChoice] | list[ChatChoice] | list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


def usage_of(generations: list[Generation]) -> Usage:
    """Tokens read and written, over all prompts of a request."""
    prompt = sum(len(generation.submit.prompt_ids) for generation in generations)
    output = sum(generation.output_tokens for generation in generations)
    cached = sum(generation.cached_tokens for generation in generations)
    return Usage(prompt, output, prompt + output, PromptDetails(cached))


class Voice(Protocol):
    """How one endpoint words what was generated."""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        ...

    def opening(self, count: int) -> list[Answer]:
        """Chunks before the first text."""
        ...

    def piece(self, index: int, text: str, finish: FinishReason | None) -> Answer:
        """One chunk of a stream."""
        ...

    def closing(self, usage: Usage) -> Answer:
        """The chunk that carries the usage."""
        ...

    def whole(self, texts: list[str], generations: list[Generation]) -> Answer:
        """The answer in one piece."""
        ...


@dataclass(frozen=True, slots=True)
class CompletionVoice:
    """`/v1/completions`."""

    model: str
    include_usage: bool
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, count: int) -> list[Answer]:  # noqa: ARG002 - a Voice
        """Nothing: text comes at once."""
        return []

    def piece(self, index: int, text: str, finish: FinishReason | None) -> Answer:
        """A piece of one choice's text."""
        return self._answer([TextChoice(index, text, finish)], self._no_usage())

    def closing(self, usage: Usage) -> Answer:
        """Usage and no choice."""
        return self._answer([], usage)

    def whole(self, texts: list[str], generations: list[Generation]) -> Answer:
        """Every choice and the usage."""
        pairs = zip(texts, generations, strict=True)
        choices = [TextChoice(i, text, made.finish) for i, (text, made) in enumerate(pairs)]
        return self._answer(choices, usage_of(generations))

    def _no_usage(self) -> msgspec.UnsetType | None:
        # With the option every chunk has the field, null but for the last one.
        return None if self.include_usage else msgspec.UNSET

    def _answer(self, choices: list[TextChoice], usage: Usage | msgspec.UnsetType | None) -> Answer:
        return Answer(self.id, "text_completion", self.created, self.model, choices, usage)


@dataclass(frozen=True, slots=True)
class ChatVoice:
    """`/v1/chat/completions`."""

    model: str
    include_usage: bool
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self, count: int) -> list[Answer]:
        """Who speaks, for each choice."""
        opening = ChatDelta(role="assistant", content="")
        return [self._chunk(ChatChunkChoice(index, opening, None)) for index in range(count)]

    def piece(self, index: int, text: str, finish: FinishReason | None) -> Answer:
        """A piece of what is said."""
        delta = ChatDelta(content=text) if text else ChatDelta()
        return self._chunk(ChatChunkChoice(index, delta, finish))

    def closing(self, usage: Usage) -> Answer:
        """Usage and no choice."""
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return Answer(self.id, chunk, self.created, self.model, [], usage)

    def whole(self, texts: list[str], generations: list[Generation]) -> Answer:
        """The message and the usage."""
        pairs = zip(texts, generations, strict=True)
        choices = [
            ChatChoice(i, ChatMessage("assistant", text), made.finish)
            for i, (text, made) in enumerate(pairs)
        ]
        usage = usage_of(generations)
        return Answer(self.id, "chat.completion", self.created, self.model, choices, usage)

    def _chunk(self, choice: ChatChunkChoice) -> Answer:
        # With the option every chunk has the field, null but for the last one.
        usage = None if self.include_usage else msgspec.UNSET
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return Answer(self.id, chunk, self.created, self.model, [choice], usage)
