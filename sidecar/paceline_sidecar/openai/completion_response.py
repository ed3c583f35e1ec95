"""The responses of `/v1/completions`."""

import time
import uuid
from collections import Counter
from typing import Literal

import msgspec

from paceline_sidecar.generation import Delta, FinishReason
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.logprobs import (
    PromptLogprobs,
    TextLogprobs,
    prompt_logprobs,
    text_logprobs,
)
from paceline_sidecar.openai.responses import GatheredChoice, Usage, usage_of
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
        self.include_usage = body.include_usage
        self._model = body.model or service.name
        self._has_logprobs = body.logprobs is not None
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._offsets: Counter[int] = Counter()
        """Characters of each choice's tokens so far."""

    def first_chunks(self, count: int) -> list[msgspec.Struct]:  # noqa: ARG002 - a ResponseBuilder
        """Return none: text comes at once."""
        return []

    def chunk(self, index: int, delta: Delta) -> TextCompletion | None:
        """Return a chunk with a piece of one choice; None where there is nothing to send yet."""
        if not (delta.text or delta.finish or delta.scores):
            return None
        logprobs = None
        if self._has_logprobs:
            logprobs = text_logprobs(delta.scores, offset=self._offsets[index])
            self._offsets[index] += sum(map(len, logprobs.tokens))
        choice = TextChoice(index, delta.text, delta.finish, logprobs)
        # With the option every chunk has the field, null but for the last one.
        return self._answer([choice], None if self.include_usage else msgspec.UNSET)

    def usage_chunk(self, usage: Usage) -> TextCompletion:
        """Return the chunk that holds the usage and no choice."""
        return self._answer([], usage)

    def response(self, choices: list[GatheredChoice]) -> TextCompletion:
        """Return the complete response: every choice and the usage."""
        shown = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return self._answer(shown, usage_of([choice.generation for choice in choices]))

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
