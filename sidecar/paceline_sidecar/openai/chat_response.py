"""How `/v1/chat/completions` words what was generated."""

import time
import uuid
from typing import Literal

import msgspec

from paceline_sidecar.generation import Delta, FinishReason
from paceline_sidecar.openai.call_writer import (
    CallDelta,
    CallWriter,
    FunctionDelta,
    Written,
    writer_of,
)
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    chat_logprobs,
    prompt_logprobs,
)
from paceline_sidecar.openai.responses import GatheredChoice, Usage, usage_of
from paceline_sidecar.service import Service
from paceline_sidecar.text.tool_calls import ToolStyle

ChatFinish = FinishReason | Literal["tool_calls"]


class ChatCall(msgspec.Struct, frozen=True):
    """One call, whole."""

    id: str
    type: Literal["function"]
    function: FunctionDelta


class ChatMessage(msgspec.Struct, frozen=True):
    """What the assistant said, and what it called."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ChatCall] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the assistant goes on to say."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a whole chat completion."""

    index: int
    message: ChatMessage
    finish_reason: ChatFinish | None
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a piece of a chat completion."""

    index: int
    delta: ChatDelta
    finish_reason: ChatFinish | None
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True):
    """A piece of a chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class _ChoiceParser:
    """One choice: what it says, what it calls, and how it ended."""

    def __init__(self, writer: CallWriter | None) -> None:
        self.finish: ChatFinish | None = None
        self._writer = writer
        self._called = False

    def speak(self, text: str, finish: FinishReason | None) -> Written:
        """Take the next piece of text."""
        written = Written(text)
        if self._writer is not None:
            written = self._writer.write(text, ended=finish is not None)
        self._called = self._called or bool(written.calls)
        self.finish = "tool_calls" if self._called and finish == "stop" else finish
        return written


class ChatResponseBuilder:
    """What an assistant says."""

    def __init__(self, service: Service, asked: ChatRequest) -> None:
        self.include_usage = asked.include_usage
        self._model = asked.model or service.name
        self._has_logprobs = bool(asked.logprobs)
        self._asked = asked
        self._style: ToolStyle | None = service.tool_style
        self._speakers: dict[int, _ChoiceParser] = {}
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def opening(self, count: int) -> list[msgspec.Struct]:
        """Who speaks, for each choice."""
        opening = ChatDelta(role="assistant", content="")
        return [self._chunk(ChatChunkChoice(index, opening, None)) for index in range(count)]

    def piece(self, index: int, delta: Delta) -> ChatCompletionChunk | None:
        """A piece of what is said."""
        speaker = self._speakers.get(index)
        if speaker is None:
            speaker = self._speakers[index] = self._speaker()
        written = speaker.speak(delta.text, delta.finish)
        if not (written.content or written.calls or delta.finish or delta.scores):
            return None
        said = ChatDelta(content=written.content or None, tool_calls=written.calls)
        logprobs = chat_logprobs(delta.scores) if self._has_logprobs else None
        return self._chunk(ChatChunkChoice(index, said, speaker.finish, logprobs))

    def closing(self, usage: Usage) -> ChatCompletionChunk:
        """Usage and no choice."""
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return ChatCompletionChunk(self._id, chunk, self._created, self._model, [], usage)

    def whole(self, choices: list[GatheredChoice]) -> ChatCompletion:
        """Every choice, the usage, and what was asked of the prompt."""
        return ChatCompletion(
            self._id,
            "chat.completion",
            self._created,
            self._model,
            [self._choice(index, choice) for index, choice in enumerate(choices)],
            usage_of([choice.generation for choice in choices]),
            prompt_logprobs(choices[0].generation.prompt_scores) or msgspec.UNSET,
        )

    def _choice(self, index: int, choice: GatheredChoice) -> ChatChoice:
        speaker = self._speaker()
        written = speaker.speak(choice.text, choice.generation.finish)
        message = ChatMessage("assistant", written.content)
        if written.calls:
            calls = [ChatCall(call.id or "", "function", call.function) for call in written.calls]
            message = ChatMessage("assistant", written.content or None, calls)
        logprobs = chat_logprobs(choice.scores) if self._has_logprobs else None
        return ChatChoice(index, message, speaker.finish, logprobs)

    def _speaker(self) -> "_ChoiceParser":
        return _ChoiceParser(writer_of(self._asked, self._style))

    def _chunk(self, choice: ChatChunkChoice) -> ChatCompletionChunk:
        # With the option every chunk has the field, null but for the last one.
        usage = None if self.include_usage else msgspec.UNSET
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return ChatCompletionChunk(self._id, chunk, self._created, self._model, [choice], usage)
