"""Requests as the OpenAI API defines them; unknown fields are ignored, unsupported ones refused."""

from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from paceline_sidecar.errors import InvalidRequest

_INT64_MAX = 2**63 - 1
_INT32_MAX = 2**31 - 1
_MAX_PROMPTS = 1024

StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Field(max_length=4, fail_fast=True)]
# fail_fast: one wrong item is enough; a million of them would be a million error objects.
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, le=_INT32_MAX)]], Field(min_length=1, fail_fast=True)
]
PromptList = Field(min_length=1, max_length=_MAX_PROMPTS, fail_fast=True)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, frozen=True)

    include_usage: bool = False


class GenerationRequest(BaseModel):
    """What completions and chat have in common."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", allow_inf_nan=False)

    # Fields that change the answer and are not served, and the values that ask for nothing.
    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "n": (1,),
        "logprobs": (False,),
        "logit_bias": ({},),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "repetition_penalty": (1,),
        "min_p": (0,),
    }

    model: str
    max_tokens: int | None = Field(default=None, ge=1, le=_INT32_MAX)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=_INT32_MAX)
    """-1 and 0 keep the whole vocabulary."""
    seed: int | None = Field(default=None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    stop: StopString | Annotated[list[StopString], Field(max_length=4, fail_fast=True)] | None = (
        None
    )
    stop_token_ids: Annotated[list[int], Field(max_length=64, fail_fast=True)] | None = None
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0, le=_INT32_MAX)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _supported(self) -> Self:
        for name, harmless in self.unsupported.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in harmless:
                allowed = f" other than {harmless[0]!r}" if harmless else ""
                message = f"`{name}`{allowed} is not supported."
                raise InvalidRequest(message, param=name, code="unsupported")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop`, always as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wanted_tokens(self) -> int | None:
        """Output tokens asked for; None leaves it to the context."""
        return self.max_tokens


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationRequest.unsupported,
        "logprobs": (),
        "echo": (False,),
        "suffix": ("",),
        "best_of": (1,),
    }

    prompt: (
        str | Annotated[list[str], PromptList] | TokenIds | Annotated[list[TokenIds], PromptList]
    )

    @property
    def prompts(self) -> list[str | list[int]]:
        """`prompt`, always as a list of prompts."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [[item for item in self.prompt if isinstance(item, int)]]
        return [item for item in self.prompt if not isinstance(item, int)]

    @property
    def wanted_tokens(self) -> int | None:
        """The API's default for plain completions is 16."""
        return 16 if self.max_tokens is None else self.max_tokens


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
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
    }

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_INT32_MAX)

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


Kind = TypeVar("Kind", bound=GenerationRequest)


def parse(kind: type[Kind], body: bytes) -> Kind:
    """Validate a body; raises `InvalidRequest` that names a bad field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        worst = max(found, key=lambda detail: _reached(detail["loc"]))
        param = _path(worst["loc"]) or None
        where = f"{param}: " if param else ""
        raise InvalidRequest(f"{where}{worst['msg']}", param=param) from error


def _reached(loc: tuple[int | str, ...]) -> tuple[int, int]:
    """How far into the value: of a union's arms the one that got furthest is what was meant."""
    return len(loc), max((part for part in loc if isinstance(part, int)), default=-1)


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0].content` of ('messages', 0, 'content', 'str'): names of union arms left out."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in {"str", "int"}:
            path += f".{part}" if path else part
    return path
