"""`POST /v1/completions`: prompts as text or tokens."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.api_request import (
    INT32_MAX,
    MAX_CHOICES,
    MAX_LOGPROBS,
    GenerationRequest,
)

MAX_PROMPTS = 1024

# fail_fast: one wrong item is enough; a million of them would be a million error objects.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=INT32_MAX)]], Field(min_length=1, fail_fast=True)
]
PromptList = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationRequest.unsupported,
        "suffix": ("",),
        "prompt_embeds": (),
        "add_special_tokens": (True,),
    }

    prompt: (
        str | Annotated[list[str], PromptList] | TokenIds | Annotated[list[TokenIds], PromptList]
    )

    max_tokens: int | None = Field(default=None, ge=0, le=INT32_MAX)
    """0 is allowed with `echo` only, and nothing is generated then."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    echo: bool | None = None
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    """Served where it asks for as many as are shown."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.max_tokens == 0 and not self.echo:
            message = "max_tokens is 0, which is for `echo` alone"
            raise InvalidRequest(message, param="max_tokens")
        if self.best_of is not None and self.best_of != (self.n or 1):
            message = f"best_of must equal n ({self.n or 1}), got {self.best_of}"
            raise InvalidRequest(message, param="best_of")
        if len(self.prompts) * (self.n or 1) > MAX_PROMPTS:
            message = f"prompts times n must be at most {MAX_PROMPTS}"
            raise InvalidRequest(message, param="n")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return `prompt`, always as a list of prompts."""
        return as_prompts(self.prompt)

    @property
    def requested_tokens(self) -> int | None:
        """The API's default for plain completions is 16; the engine generates one at least."""
        return 16 if self.max_tokens is None else max(self.max_tokens, 1)

    @property
    def requested_prompt_logprobs(self) -> int | None:
        """Return the logprobs wanted of the prompt; an echoed prompt has those of the output."""
        if self.prompt_logprobs is None and self.echo:
            return self.logprobs
        return self.prompt_logprobs


def as_prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Make a list of prompts of one text, several texts, the tokens of one, or those of several."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [[item for item in given if isinstance(item, int)]]
    return [item for item in given if not isinstance(item, int)]
