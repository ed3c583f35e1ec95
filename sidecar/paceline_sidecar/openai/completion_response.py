"""The responses of `/v1/completions`."""

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from paceline_sidecar.errors import SidecarError
from paceline_sidecar.generation import Delta, FinishReason, Generation
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.logprobs import (
    PromptLogprobs,
    TextLogprobs,
    prompt_logprobs,
    text_logprobs,
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


class TextChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, whole or a piece of it."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | msgspec.UnsetType = msgspec.UNSET


class TextCompletion(msgspec.Struct, frozen=True):
    """A completion, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET


class CompletionResponseBuilder:
    """Builds the responses of one completion request."""

    def __init__(self, service: Service, body: CompletionRequest) -> None:
        # The body itself is let go: its prompts may be long, and the answer as well.
        self._usage_at_end, self._usage_so_far = body.include_usage, body.include_usage_so_far
        self._model = body.model or service.name
        self._has_logprobs = body.logprobs is not None
        self._is_plain = not (self._has_logprobs or body.include_usage_so_far)
        self._plain = PlainPieces(self._text_event)
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._offsets: Counter[int] = Counter()
        """Characters of each choice's tokens so far."""
        self._generations: Sequence[Generation] = ()

    def opening(self, generations: Sequence[Generation]) -> bytes:
        """Return none: text comes at once."""
        self._generations = generations
        return b""

    def piece(self, index: int, delta: Delta) -> bytes:
        """Return a chunk with a piece of one choice; none where there is nothing to send yet."""
        if self._is_plain and delta.is_text_alone:
            return self._plain.event(index, delta.text)
        if not (delta.text or delta.finish or delta.scores):
            return b""
        logprobs = None
        if self._has_logprobs:
            logprobs = text_logprobs(delta.scores, offset=self._offsets[index])
            self._offsets[index] += sum(map(len, logprobs.tokens))
        choice = TextChoice(index, delta.text, delta.finish, logprobs)
        return data_event(self._answer([choice], self._usage(index)))

    def _text_event(self, index: int, text: str) -> bytes:
        return data_event(self._answer([TextChoice(index, text, None)], self._usage(index)))

    def closing(self) -> bytes:
        """Return the chunk that holds the usage, where it was asked for, and the end."""
        if not self._usage_at_end:
            return DONE
        return data_event(self._answer([], usage_of(self._generations))) + DONE

    def failure(self, error: SidecarError) -> bytes:
        """Return the error as the last event."""
        return error_event(error)

    def response(self, choices: list[GatheredChoice]) -> TextCompletion:
        """Return the complete response: every choice and the usage."""
        shown = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return self._answer(shown, usage_of([choice.generation for choice in choices]))

    def _usage(self, index: int) -> Usage | msgspec.UnsetType | None:
        if self._usage_so_far:
            return usage_so_far(self._generations[index])
        # With the option every chunk has the field, null but for the last one.
        return None if self._usage_at_end else msgspec.UNSET

    def _choice(self, index: int, choice: GatheredChoice) -> TextChoice:
        return TextChoice(
            index,
            choice.text,
            choice.generation.finish,
            text_logprobs(choice.scores, offset=0) if self._has_logprobs else None,
            prompt_logprobs(choice.generation.prompt_scores) or msgspec.UNSET,
        )

    def _answer(
        self, choices: list[TextChoice], usage: Usage | msgspec.UnsetType | None
    ) -> TextCompletion:
        return TextCompletion(
            self._id, "text_completion", self._created, self._model, choices, usage
        )
