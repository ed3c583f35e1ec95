"""The responses of `/v1/chat/completions`."""

import time
import uuid
from typing import Literal

import msgspec

from paceline_sidecar.generation import Delta, FinishReason
from paceline_sidecar.openai.call_writer import (
    CallDelta,
    CallWriter,
    ContentAndCalls,
    FunctionDelta,
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
from paceline_sidecar.text.tool_call_parser import ToolStyle

ChatFinish = FinishReason | Literal["tool_calls"]


class ChatCall(msgspec.Struct, frozen=True):
    """A complete tool call."""

    id: str
    type: Literal["function"]
    function: FunctionDelta


class ChatMessage(msgspec.Struct, frozen=True):
    """The assistant's text and tool calls."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ChatCall] | msgspec.UnsetType = msgspec.UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the assistant's text or of its tool calls."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a chat completion."""

    index: int
    message: ChatMessage
    finish_reason: ChatFinish | None
    logprobs: ChatLogprobs | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a chunk."""

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
    """A chunk of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class _ChoiceParser:
    """Splits one choice into text and tool calls, and knows how it ended."""

    def __init__(self, writer: CallWriter | None) -> None:
        self.finish: ChatFinish | None = None
        self._writer = writer
        self._called = False

    def push(self, text: str, finish: FinishReason | None) -> ContentAndCalls:
        """Take the next piece of text."""
        parsed = ContentAndCalls(text)
        if self._writer is not None:
            parsed = self._writer.write(text, ended=finish is not None)
        self._called = self._called or bool(parsed.calls)
        self.finish = "tool_calls" if self._called and finish == "stop" else finish
        return parsed


class ChatResponseBuilder:
    """Builds the responses of one chat request."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.include_usage = body.include_usage
        self._model = body.model or service.name
        self._has_logprobs = bool(body.logprobs)
        self._body = body
        self._style: ToolStyle | None = service.tool_style
        self._parsers: dict[int, _ChoiceParser] = {}
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def first_chunks(self, count: int) -> list[msgspec.Struct]:
        """Return a chunk for each choice that names its role."""
        opening = ChatDelta(role="assistant", content="")
        return [self._chunk_of(ChatChunkChoice(index, opening, None)) for index in range(count)]

    def chunk(self, index: int, delta: Delta) -> ChatCompletionChunk | None:
        """Return a chunk with a piece of one choice; None where there is nothing to send yet."""
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._new_parser()
        parsed = parser.push(delta.text, delta.finish)
        if not (parsed.content or parsed.calls or delta.finish or delta.scores):
            return None
        piece = ChatDelta(content=parsed.content or None, tool_calls=parsed.calls)
        logprobs = chat_logprobs(delta.scores) if self._has_logprobs else None
        return self._chunk_of(ChatChunkChoice(index, piece, parser.finish, logprobs))

    def usage_chunk(self, usage: Usage) -> ChatCompletionChunk:
        """Return the chunk that holds the usage and no choice."""
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return ChatCompletionChunk(self._id, chunk, self._created, self._model, [], usage)

    def response(self, choices: list[GatheredChoice]) -> ChatCompletion:
        """Return the complete response: every choice, the usage, the prompt's logprobs."""
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
        parser = self._new_parser()
        parsed = parser.push(choice.text, choice.generation.finish)
        message = ChatMessage("assistant", parsed.content)
        if parsed.calls:
            calls = [ChatCall(call.id or "", "function", call.function) for call in parsed.calls]
            message = ChatMessage("assistant", parsed.content or None, calls)
        logprobs = chat_logprobs(choice.scores) if self._has_logprobs else None
        return ChatChoice(index, message, parser.finish, logprobs)

    def _new_parser(self) -> _ChoiceParser:
        return _ChoiceParser(writer_of(self._body, self._style))

    def _chunk_of(self, choice: ChatChunkChoice) -> ChatCompletionChunk:
        # With the option every chunk has the field, null but for the last one.
        usage = None if self.include_usage else msgspec.UNSET
        chunk: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        return ChatCompletionChunk(self._id, chunk, self._created, self._model, [choice], usage)
