"""`POST /tokenize` and `POST /detokenize`: vLLM's requests and answers."""

from typing import Annotated, Any, ClassVar, Self

import msgspec
from pydantic import Field, model_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.api_request import INT32_MAX, ApiRequest
from paceline_sidecar.openai.chat_request import Message
from paceline_sidecar.openai.tools import Tools

TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


class TokenizeRequest(ApiRequest):
    """`POST /tokenize`: a plain prompt or a conversation."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "chat_template": (),
        "continue_final_message": (False,),
        "mm_processor_kwargs": ({},),
    }

    prompt: str | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)] | None
    ) = None
    add_special_tokens: bool | None = None
    """As in vLLM, a plain prompt has them unless it says no, a conversation only if it says yes."""
    add_generation_prompt: bool | None = None
    """None is yes."""
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=64)] | None = None
    tools: Tools | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            message = "Either `prompt` or `messages` is needed, and not both."
            raise InvalidRequest(message, param="prompt")
        if self.messages is not None and self.add_special_tokens:
            message = "`add_special_tokens` for `messages` is not supported: the template has them."
            raise InvalidRequest(message, param="add_special_tokens", code="unsupported")
        return self


class TokenizeResponse(msgspec.Struct, frozen=True):
    """The tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(ApiRequest):
    """`POST /detokenize`."""

    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    """The text of some tokens."""

    prompt: str
