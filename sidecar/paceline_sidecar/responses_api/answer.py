"""The answers of `/v1/responses`: a response, or the events of one that grows."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from paceline_sidecar.errors import SidecarError
from paceline_sidecar.generation import Delta, Generation
from paceline_sidecar.openai.call_writer import CallRules
from paceline_sidecar.openai.choice_parser import (
    Block,
    BlockChange,
    BlockKind,
    BlockReader,
    ChoiceParser,
    parser_for,
)
from paceline_sidecar.openai.error_response import body_of
from paceline_sidecar.openai.responses import GatheredChoice, named_event, usage_of
from paceline_sidecar.responses_api.request import ResponsesRequest
from paceline_sidecar.service import Service


class ModelResponse(msgspec.Struct, frozen=True):
    """A response, with what was asked for beside what came of it."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[dict[str, Any]]
    text: dict[str, Any]
    reasoning: dict[str, Any]
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    metadata: dict[str, str]
    user: str | None
    service_tier: str
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    completed_at: int | None = None
    object: str = "response"
    previous_response_id: None = None
    truncation: str = "disabled"
    store: bool = False
    background: bool = False


class ResponseEvent(msgspec.Struct, frozen=True):
    """What all events of a stream have; the kind says what else there is."""

    type: str
    sequence_number: int


class ResponsesBuilder:
    """Builds the responses of one request; its one choice is seen as blocks, each one an item."""

    def __init__(self, service: Service, body: ResponsesRequest) -> None:
        chat = body.chat
        self._rules = CallRules.of(chat)
        self._temperature = 1.0 if chat.temperature is None else chat.temperature
        self._top_p = 1.0 if chat.top_p is None else chat.top_p
        # What was asked is repeated, but for its input: that may be long, and the answer as well.
        self._body = body.model_copy(update={"input": ""})
        del self._body.chat
        self._model = body.model or service.name
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._codec = service.codec
        self._reader = BlockReader(ChoiceParser(None))
        self._generations: Sequence[Generation] = ()
        self._sequence = 0

    def opening(self, generations: Sequence[Generation]) -> bytes:
        """Return the events that say that a response begins."""
        self._begin(generations)
        empty = self._response("in_progress")
        created = self._event("response.created", response=empty)
        return created + self._event("response.in_progress", response=empty)

    def piece(self, index: int, delta: Delta) -> bytes:
        """Return the events of one more piece: items and parts begin, grow and are complete."""
        del index
        changes = self._reader.push(delta.text, delta.finish)
        return b"".join(map(self._events_of, changes))

    def closing(self) -> bytes:
        """Return the event that holds the whole response."""
        whole = self._final()
        return self._event(f"response.{whole.status}", response=whole)

    def failure(self, error: SidecarError) -> bytes:
        """Return the event that says why the response ends here."""
        told = body_of(error).error
        why = {"code": told.code or told.type, "message": told.message}
        return self._event("response.failed", response=self._response("failed", error=why))

    def response(self, choices: list[GatheredChoice]) -> ModelResponse:
        """Return the response in one piece."""
        self._begin([choice.generation for choice in choices])
        self._reader.push(choices[0].text, choices[0].generation.finish)
        return self._final()

    def _begin(self, generations: Sequence[Generation]) -> None:
        self._generations = generations
        prompt_tail = generations[0].prompt_tail
        self._reader = BlockReader(parser_for(self._codec, self._rules, prompt_tail))

    def _events_of(self, change: BlockChange) -> bytes:
        block = change.block
        if change.kind == "opened":
            added = self._item_event("response.output_item.added", block, "in_progress")
            return added + self._part_event("response.content_part.added", block)
        name, place = _EVENTS[block.kind], _PLACES[block.kind]
        if change.kind == "grown":
            return self._block_event(f"{name}.delta", block, delta=change.piece, **place)
        if block.kind == "call":
            done = self._block_event(f"{name}.done", block, arguments=block.text, name=block.name)
        else:
            done = self._block_event(f"{name}.done", block, text=block.text, **place)
            done += self._part_event("response.content_part.done", block)
        return done + self._item_event("response.output_item.done", block, self._status(block))

    def _item_event(self, name: str, block: Block, status: str) -> bytes:
        return self._event(name, output_index=block.index, item=self._item(block, status))

    def _part_event(self, name: str, block: Block) -> bytes:
        if block.kind == "call":
            return b""
        return self._block_event(name, block, content_index=0, part=_part(block))

    def _block_event(self, event: str, block: Block, /, **more: Any) -> bytes:
        return self._event(event, item_id=self._item_id(block), output_index=block.index, **more)

    def _event(self, name: str, /, **more: Any) -> bytes:
        event = {"type": name, "sequence_number": self._sequence, **more}
        self._sequence += 1
        return named_event(name, event)

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._id.removeprefix('resp_')}{block.index}"

    def _item(self, block: Block, status: str) -> dict[str, Any]:
        common = {"id": self._item_id(block), "status": status}
        if block.kind == "call":
            call = {"call_id": block.id, "name": block.name, "arguments": block.text}
            return {**common, "type": "function_call", **call}
        # An item is announced before its first part is.
        content = [_part(block)] if block.pieces else []
        if block.kind == "reasoning":
            return {**common, "type": "reasoning", "summary": [], "content": content}
        return {**common, "type": "message", "role": "assistant", "content": content}

    def _status(self, block: Block) -> str:
        is_cut = self._reader.finish == "length" and block is self._reader.blocks[-1]
        return "incomplete" if is_cut else "completed"

    def _final(self) -> ModelResponse:
        if self._reader.finish != "length":
            return self._response("completed")
        return self._response("incomplete", reason="max_output_tokens")

    def _response(
        self, status: str, *, reason: str | None = None, error: dict[str, Any] | None = None
    ) -> ModelResponse:
        body, has_ended = self._body, status in {"completed", "incomplete"}
        return ModelResponse(
            id=self._id,
            created_at=self._created,
            model=self._model,
            status=status,
            output=[self._item(each, self._status(each)) for each in self._reader.blocks],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            tool_choice=_dumped(body.tool_choice) or "auto",
            tools=[tool.model_dump(exclude_unset=True) for tool in body.tools or ()],
            text=_dumped(body.text) or {"format": {"type": "text"}},
            reasoning=_dumped(body.reasoning) or {"effort": None, "summary": None},
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=self._temperature,
            top_p=self._top_p,
            metadata=body.metadata or {},
            user=body.user,
            service_tier=body.service_tier or "default",
            usage=self._usage() if has_ended else None,
            error=error,
            incomplete_details=None if reason is None else {"reason": reason},
            completed_at=int(time.time()) if status == "completed" else None,
        )

    def _thought_tokens(self) -> int:
        """Count the thought's tokens anew: where it ended lies within the model's own."""
        thought = "".join(each.text for each in self._reader.blocks if each.kind == "reasoning")
        return len(self._codec.tokens_of(thought)) if self._codec and thought else 0

    def _usage(self) -> dict[str, Any]:
        counted = usage_of(self._generations)
        cached = counted.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": counted.prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": counted.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._thought_tokens()},
            "total_tokens": counted.total_tokens,
        }


_EVENTS: dict[BlockKind, str] = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}
_PLACES: dict[BlockKind, dict[str, Any]] = {
    "reasoning": {"content_index": 0},
    "text": {"content_index": 0, "logprobs": []},
    "call": {},
}
_PREFIXES: dict[BlockKind, str] = {"reasoning": "rs", "text": "msg", "call": "fc"}


def _part(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


def _dumped(given: Any) -> Any:
    """Return a part of the request as it came."""
    if hasattr(given, "model_dump"):
        return given.model_dump(exclude_unset=True, by_alias=True)
    return given
