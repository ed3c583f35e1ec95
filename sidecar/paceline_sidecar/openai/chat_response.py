"""The responses of `/v1/chat/completions`."""

import time
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec

from paceline_sidecar.errors import SidecarError
from paceline_sidecar.generation import Delta, Generation
from paceline_sidecar.openai.call_writer import CallDelta, CallRules, ContentAndCalls, FunctionDelta
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.choice_parser import ChatFinish, ChoiceParser, parser_for
from paceline_sidecar.openai.logprobs import (
    ChatLogprobs,
    PromptLogprobs,
    chat_logprobs,
    prompt_logprobs,
)
from paceline_sidecar.openai.responses import (
    DONE,
    GatheredChoice,
    PlainPieces,
    Usage,
    data_event,
    error_event,
    usage_of,
    usage_so_far,
)
from paceline_sidecar.service import Service


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
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    """What the model thought before it answered; vLLM's name."""
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    """The same, under the name that vLLM had before and others still have."""


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of the assistant's text or of its tool calls."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()
    reasoning: str | None = None
    reasoning_content: str | None = None


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


class ChatResponseBuilder:
    """Builds the responses of one chat request."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self._model = body.model or service.name
        self._has_logprobs = bool(body.logprobs)
        # The body itself is let go: the messages may be long, and the answer as well.
        self._usage_at_end, self._usage_so_far = body.include_usage, body.include_usage_so_far
        self._rules = CallRules.of(body)
        self._codec = service.codec
        # What a piece holds then is its text, with no state from one to the next.
        self._is_plain = parser_for(self._codec, self._rules, []).is_plain and not (
            self._has_logprobs or self._usage_so_far
        )
        self._plain = PlainPieces(self._text_event)
        self._parsers: dict[int, ChoiceParser] = {}
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._generations: Sequence[Generation] = ()

    def opening(self, generations: Sequence[Generation]) -> bytes:
        """Return a chunk for each choice that names its role."""
        self._generations = generations
        role = ChatDelta(role="assistant", content="")
        chunks = (ChatChunkChoice(index, role, None) for index in range(len(generations)))
        return b"".join(map(self._chunk_of, chunks))

    def piece(self, index: int, delta: Delta) -> bytes:
        """Return a chunk with a piece of one choice; none where there is nothing to send yet."""
        if self._is_plain and delta.is_text_alone:
            return self._plain.event(index, delta.text)
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._new_parser(self._generations[index])
            self._parsers[index] = parser
        parsed = parser.push(delta.text, delta.finish)
        if not (parsed != ContentAndCalls() or delta.finish or delta.scores):
            return b""
        thought = parsed.reasoning or None
        piece = ChatDelta(None, parsed.content or None, parsed.calls, thought, thought)
        logprobs = chat_logprobs(delta.scores) if self._has_logprobs else None
        return self._chunk_of(ChatChunkChoice(index, piece, parser.finish, logprobs))

    def _text_event(self, index: int, text: str) -> bytes:
        return self._chunk_of(ChatChunkChoice(index, ChatDelta(content=text), None))

    def closing(self) -> bytes:
        """Return the chunk that holds the usage, where it was asked for, and the end."""
        if not self._usage_at_end:
            return DONE
        return self._encoded([], usage_of(self._generations)) + DONE

    def failure(self, error: SidecarError) -> bytes:
        """Return the error as the last event."""
        return error_event(error)

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
        parser = self._new_parser(choice.generation)
        parsed = parser.push(choice.text, choice.generation.finish)
        calls = [ChatCall(call.id or "", "function", call.function) for call in parsed.calls]
        # An empty text is an answer, beside which there is nothing else.
        content = parsed.content or (None if calls or parsed.reasoning else "")
        thought = parsed.reasoning or msgspec.UNSET
        message = ChatMessage("assistant", content, calls or msgspec.UNSET, thought, thought)
        logprobs = chat_logprobs(choice.scores) if self._has_logprobs else None
        return ChatChoice(index, message, parser.finish, logprobs)

    def _new_parser(self, generation: Generation) -> ChoiceParser:
        return parser_for(self._codec, self._rules, generation.prompt_tail)

    def _chunk_of(self, choice: ChatChunkChoice) -> bytes:
        return self._encoded([choice], self._usage(choice.index))

    def _usage(self, index: int) -> Usage | msgspec.UnsetType | None:
        if self._usage_so_far:
            return usage_so_far(self._generations[index])
        # With the option every chunk has the field, null but for the last one.
        return None if self._usage_at_end else msgspec.UNSET

    def _encoded(
        self, choices: list[ChatChunkChoice], usage: Usage | msgspec.UnsetType | None
    ) -> bytes:
        kind: Literal["chat.completion.chunk"] = "chat.completion.chunk"
        chunk = ChatCompletionChunk(self._id, kind, self._created, self._model, choices, usage)
        return data_event(chunk)
