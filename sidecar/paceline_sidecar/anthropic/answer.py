"""The answers of `/v1/messages`: a message, or the events of one that grows."""

import json
import uuid
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from paceline_sidecar.anthropic.error_response import messages_error
from paceline_sidecar.anthropic.request import MessagesRequest
from paceline_sidecar.errors import SidecarError
from paceline_sidecar.generation import Delta, Generation
from paceline_sidecar.openai.call_writer import CallRules
from paceline_sidecar.openai.choice_parser import (
    Block,
    BlockChange,
    BlockReader,
    ChoiceParser,
    parser_for,
)
from paceline_sidecar.openai.responses import GatheredChoice, named_event, usage_of
from paceline_sidecar.service import Service

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(msgspec.Struct, frozen=True):
    """`usage`: what was found in the prefix cache is not among the input tokens."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class AnswerMessage(msgspec.Struct, frozen=True):
    """The assistant's message."""

    id: str
    model: str
    content: list[dict[str, Any]]
    usage: MessageUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"


class TokenCount(msgspec.Struct, frozen=True):
    """The answer of `count_tokens`."""

    input_tokens: int


class MessageEvent(msgspec.Struct, frozen=True):
    """What all events of a stream have; the kind says what else there is."""

    type: str


class MessagesBuilder:
    """Builds the answers of one request; its one choice is seen as blocks."""

    def __init__(self, service: Service, body: MessagesRequest) -> None:
        self._model = body.model or service.name
        self._id = f"msg_{uuid.uuid4().hex}"
        self._rules = CallRules.of(body.chat)
        self._codec = service.codec
        self._reader = BlockReader(ChoiceParser(None))
        self._generations: Sequence[Generation] = ()

    def opening(self, generations: Sequence[Generation]) -> bytes:
        """Return the event that says that a message begins."""
        self._begin(generations)
        return _event("message_start", message=self._message([]))

    def piece(self, index: int, delta: Delta) -> bytes:
        """Return the events of one more piece: blocks begin, grow and are complete."""
        del index
        changes = self._reader.push(delta.text, delta.finish)
        return b"".join(map(_change_event, changes))

    def closing(self) -> bytes:
        """Return the events that say how the message ended."""
        reason, sequence = self._end()
        why = {"stop_reason": reason, "stop_sequence": sequence}
        told = _event("message_delta", delta=why, usage=self._usage())
        return told + _event("message_stop")

    def failure(self, error: SidecarError) -> bytes:
        """Return the event that ends the stream instead."""
        return named_event("error", messages_error(error))

    def response(self, choices: list[GatheredChoice]) -> AnswerMessage:
        """Return the message in one piece."""
        self._begin([choice.generation for choice in choices])
        self._reader.push(choices[0].text, choices[0].generation.finish)
        reason, sequence = self._end()
        content = [_written(block) for block in self._reader.blocks]
        return self._message(content, reason, sequence)

    def _begin(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        prompt_tail = generations[0].prompt_tail
        self._reader = BlockReader(parser_for(self._codec, self._rules, prompt_tail))

    def _message(
        self,
        content: list[dict[str, Any]],
        reason: StopReason | None = None,
        sequence: str | None = None,
    ) -> AnswerMessage:
        return AnswerMessage(self._id, self._model, content, self._usage(), reason, sequence)

    def _end(self) -> tuple[StopReason, str | None]:
        met = self._generations[0].stop_string
        match self._reader.finish:
            case "tool_calls":
                return "tool_use", None
            case "length":
                return "max_tokens", None
            case _:
                return ("end_turn" if met is None else "stop_sequence"), met

    def _usage(self) -> MessageUsage:
        counted = usage_of(self._generations)
        cached = counted.prompt_tokens_details.cached_tokens
        return MessageUsage(counted.prompt_tokens - cached, counted.completion_tokens, cached)


def _change_event(change: BlockChange) -> bytes:
    block = change.block
    match change.kind:
        case "opened":
            return _event("content_block_start", index=block.index, content_block=_begun(block))
        case "grown":
            return _event("content_block_delta", index=block.index, delta=_delta(change))
        case "closed":
            return _event("content_block_stop", index=block.index)


def _begun(block: Block) -> dict[str, Any]:
    if block.kind == "call":
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": {}}
    if block.kind == "reasoning":
        # Nothing is signed: a thought may be sent back as it is.
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(change: BlockChange) -> dict[str, str]:
    if change.block.kind == "call":
        return {"type": "input_json_delta", "partial_json": change.piece}
    if change.block.kind == "reasoning":
        return {"type": "thinking_delta", "thinking": change.piece}
    return {"type": "text_delta", "text": change.piece}


def _written(block: Block) -> dict[str, Any]:
    begun = _begun(block)
    if block.kind == "call":
        return begun | {"input": _arguments(block.text)}
    return begun | {"thinking" if block.kind == "reasoning" else "text": block.text}


def _arguments(text: str) -> Any:
    """Return a call's arguments; those that were cut off at `max_tokens` cannot be shown."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _event(name: str, /, **more: Any) -> bytes:
    return named_event(name, {"type": name, **more})
