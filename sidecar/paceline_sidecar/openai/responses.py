"""What the responses of every endpoint have in common, and the port that builds them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from paceline_sidecar.errors import SidecarError
from paceline_sidecar.generation import Delta, Generation, TokenScore
from paceline_sidecar.openai.error_response import body_of

_encode = msgspec.json.Encoder().encode
DONE = b"data: [DONE]\n\n"
"""The last event of OpenAI's older streams."""


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """`usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(generations: Sequence[Generation]) -> Usage:
    """Count the tokens read and written; a prompt counts once, however many choices it has."""
    prompt = sum(generation.counted_prompt_tokens for generation in generations)
    output = sum(generation.shown_tokens for generation in generations)
    firsts = [generation for generation in generations if generation.shape.index == 0]
    cached = sum(generation.cached_tokens for generation in firsts)
    return Usage(prompt, output, prompt + output, PromptDetails(cached))


def usage_so_far(generation: Generation) -> Usage:
    """Count one choice that still runs, with its prompt."""
    prompt, output = generation.num_prompt_tokens, generation.shown_tokens
    return Usage(prompt, output, prompt + output, PromptDetails(generation.cached_tokens))


def data_event(message: msgspec.Struct) -> bytes:
    """Return a server-sent event without a name."""
    return b"data: " + _encode(message) + b"\n\n"


def named_event(name: str, message: object) -> bytes:
    """Return a server-sent event that says its kind before its data."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(message) + b"\n\n"


def error_event(error: SidecarError) -> bytes:
    """Return the event that ends a stream whose status is sent already."""
    return data_event(body_of(error))


class PlainPieces:
    """Events of pieces that differ in their text alone: the rest is encoded once a choice."""

    def __init__(self, event_of: Callable[[int, str], bytes]) -> None:
        self._event_of = event_of
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def event(self, index: int, text: str) -> bytes:
        """Return the event of a piece of one choice."""
        before, after = self._frames.get(index) or self._frame(index)
        return before + _encode(text) + after

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        placeholder = "\0the text of a piece\0"
        before, _, after = self._event_of(index, placeholder).partition(_encode(placeholder))
        self._frames[index] = before, after
        return before, after


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
    """Builds the responses of one request in the shape of its endpoint.

    Of a stream it returns the bytes of the events that are due, none where none are.
    """

    def opening(self, generations: Sequence[Generation]) -> bytes:
        """Return the events before the first text; it is told what runs."""
        ...

    def piece(self, index: int, delta: Delta) -> bytes:
        """Return the events of one more piece of a choice."""
        ...

    def closing(self) -> bytes:
        """Return the events after the last piece of the last choice."""
        ...

    def failure(self, error: SidecarError) -> bytes:
        """Return the event that ends the stream instead."""
        ...

    def response(self, choices: list[GatheredChoice]) -> msgspec.Struct:
        """Return the response in one piece."""
        ...
