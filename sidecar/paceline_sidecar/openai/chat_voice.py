"""How `/v1/chat/completions` words what was generated."""

import time
import uuid
from typing import Literal

import msgspec

from paceline_sidecar.generation import Delta, FinishReason
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    chat_logprobs,
    prompt_logprobs,
)
from paceline_sidecar.openai.responses import Choice, Usage, usage_of


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant said."""

    role: Literal["assistant"]
    content: str


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the assistant goes on to say."""

    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a whole chat completion."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason | None
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a piece of a chat completion."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None
    logprobs: ChatLogprobs | None = None


class ChatAnswer(msgspec.Struct, frozen=True):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """A piece of a chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class ChatVoice:
    """What an assistant says."""

    def __init__(self, model: str, asked: ChatRequest) -> None:
        self.include_usage = asked.include_usage
        self._model = model
        self._tells = bool(asked.logprobs)
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def opening(self, count: int) -> list[msgspec.Struct]:
        """Who speaks, for each choice."""
        opening = ChatDelta(role="assistant", content="")
        return [self._chunk(ChatChunkChoice(index, opening, None)) for index in range(count)]

    def piece(self, index: int, delta: Delta) -> ChatChunk | None:
        """A piece of what is said."""
        if not (delta.text or delta.finish or delta.scores):
            return None
        said = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        logprobs = chat_logprobs(delta.scores) if self._tells else None
        return self._chunk(ChatChunkChoice(index, said, delta.finish, logprobs))

    def closing(self, usage: Usage) -> ChatChunk:
        """Usage and no choice."""
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return ChatChunk(self._id, chunk, self._created, self._model, [], usage)

    def whole(self, choices: list[Choice]) -> ChatAnswer:
        """Every choice, the usage, and what was asked of the prompt."""
        return ChatAnswer(
            self._id,
            "chat.completion",
            self._created,
            self._model,
            [self._choice(index, choice) for index, choice in enumerate(choices)],
            usage_of([choice.generation for choice in choices]),
            prompt_logprobs(choices[0].generation.prompt_scores) or msgspec.UNSET,
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        return ChatChoice(
            index,
            ChatMessage("assistant", choice.text),
            choice.generation.finish,
            chat_logprobs(choice.scores) if self._tells else None,
        )

    def _chunk(self, choice: ChatChunkChoice) -> ChatChunk:
        # With the option every chunk has the field, null but for the last one.
        usage = None if self.include_usage else msgspec.UNSET
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return ChatChunk(self._id, chunk, self._created, self._model, [choice], usage)
