"""`POST /v1/chat/completions`: a conversation."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.requests import INT32_MAX, MAX_LOGPROBS, GenerationRequest


class TextPart(BaseModel):
    """One part of a message's content; only text is served."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of the conversation."""

    model_config = ConfigDict(strict=True, frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = None

    def as_template_input(self) -> dict[str, str]:
        """Role and plain text; templates know a `developer` as `system`."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts or [])
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationRequest.unsupported,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
    }

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            message = "top_logprobs needs logprobs to be true"
            raise InvalidRequest(message, param="top_logprobs")
        return self

    @field_validator("messages")
    @classmethod
    def _says_something(cls, messages: list[Message]) -> list[Message]:
        for message in messages:
            if message.content is None and message.role != "assistant":
                msg = f"a message of role `{message.role}` needs a content"
                raise ValueError(msg)
        return messages

    @property
    def wanted_tokens(self) -> int | None:
        """The newer name counts when both are given."""
        newer = self.max_completion_tokens
        return self.max_tokens if newer is None else newer
