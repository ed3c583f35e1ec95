"""What all requests have in common: unknown fields are ignored, unsupported ones refused."""

from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.openai.body import BodyPart
from paceline_sidecar.openai.structured import (
    RequestedGrammar,
    Structured,
    check_size,
    requested_grammar,
)
from paceline_wire.limits import Lane

_INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
MAX_CHOICES = 128
MAX_LOGPROBS = 20
_MAX_BIASES = 1024

StopString = Annotated[str, Field(min_length=1, max_length=256)]
StopStrings = Annotated[list[StopString], Field(max_length=4, fail_fast=True)]
# JSON's keys are strings.
TokenKey = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,10}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]


class StreamOptions(BodyPart):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """With `include_usage`: every chunk has the usage of its choice so far, as in vLLM."""


class ApiRequest(BodyPart):
    """What every request has; fields that are not served are refused."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {}
    """Fields that would change the answer, and the values that ask for nothing."""

    model: str | None = None
    """None takes the one that is served."""
    priority: int | None = Field(default=None, ge=-INT32_MAX, le=INT32_MAX)
    """Above 0 it may wait: the lane is `batch`. vLLM serves lower numbers first."""
    service_tier: Literal["auto", "default", "priority", "flex", "scale"] | None = None
    """`flex` may wait: the lane is `batch`."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Prompts with another salt share no cached prefix with this one."""

    @property
    def lane(self) -> Lane:
        """Return the lane that the body asks for."""
        may_wait = (self.priority or 0) > 0 or self.service_tier == "flex"
        return "batch" if may_wait else "interactive"

    @model_validator(mode="after")
    def _supported(self) -> Self:
        for name, harmless in self.unsupported.items():
            value = (self.model_extra or {}).get(name)
            if value is not None and value not in harmless:
                allowed = f" other than {harmless[0]!r}" if harmless else ""
                message = f"`{name}`{allowed} is not supported."
                raise InvalidRequest(message, param=name, code="unsupported")
        return self


class TextRequest(ApiRequest):
    """What every request has whose answer is text."""

    stream: bool | None = None


class GenerationRequest(Structured, TextRequest):
    """What completions and chat have in common."""

    unsupported: ClassVar[dict[str, tuple[object, ...]]] = {
        "use_beam_search": (False,),
        "length_penalty": (1,),
        "bad_words": ([],),
        "allowed_token_ids": (),
        "truncate_prompt_tokens": (),
        "truncation_side": (),
        "include_stop_str_in_output": (False,),
        "skip_special_tokens": (True,),
        "spaces_between_special_tokens": (True,),
        "guided_decoding_backend": ("auto",),
        "watermarking": (False,),
        "repetition_detection": (),
        "thinking_token_budget": (),
        "logprob_token_ids": (),
        "return_token_ids": (False,),
        "return_tokens_as_token_ids": (False,),
        "return_token_offsets": (False,),
        "return_prompt_text": (False,),
        "kv_transfer_params": (),
        "ec_transfer_params": (),
        "vllm_xargs": ({},),
    }

    max_tokens: int | None = Field(default=None, ge=1, le=INT32_MAX)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, le=INT32_MAX)
    """-1 and 0 keep the whole vocabulary."""
    seed: int | None = Field(default=None, ge=-_INT64_MAX - 1, le=_INT64_MAX)
    stop: StopString | StopStrings | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=64, fail_fast=True)] | None = None
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0, le=INT32_MAX)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=100)
    min_p: float | None = Field(default=None, ge=0, le=1)
    logit_bias: Annotated[dict[TokenKey, Bias], Field(max_length=_MAX_BIASES)] | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    stream_options: StreamOptions | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _can_be_streamed(self) -> Self:
        if self.stream and self.prompt_logprobs is not None:
            message = "`prompt_logprobs` cannot be streamed."
            raise InvalidRequest(message, param="prompt_logprobs")
        return self

    @property
    def grammar_from_fields(self) -> RequestedGrammar | None:
        """Return the grammar that the fields ask for."""
        return requested_grammar(self)

    @cached_property
    def structure(self) -> RequestedGrammar | None:
        """Return the grammar that the output must match; raises `InvalidRequest`."""
        wanted = self.grammar_from_fields
        if wanted is not None:
            check_size(wanted)
            for name in ("ignore_eos", "min_tokens"):
                if getattr(self, name):
                    message = f"{name}: a structured output ends where its grammar does"
                    raise InvalidRequest(message, param=name)
        return wanted

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
    def include_usage_so_far(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        options = self.stream_options
        return self.include_usage and options is not None and options.continuous_usage_stats

    @property
    def requested_tokens(self) -> int | None:
        """Output tokens asked for; None leaves it to the context."""
        return self.max_tokens


Kind = TypeVar("Kind", bound=BodyPart)


def parse(kind: type[Kind], body: bytes) -> Kind:
    """Validate a body; raises `InvalidRequest` that names a bad field."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise refusal_of(error) from error


def refusal_of(error: ValidationError) -> InvalidRequest:
    """Return the refusal that names the field which a validation found wrong."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    worst = max(found, key=lambda detail: _reached(detail["loc"]))
    param = _path(worst["loc"]) or None
    where = f"{param}: " if param else ""
    return InvalidRequest(f"{where}{worst['msg']}", param=param)


def _reached(loc: tuple[int | str, ...]) -> tuple[int, int]:
    """Measure how far validation got: the union's arm that got furthest is the one meant."""
    return len(loc), max((part for part in loc if isinstance(part, int)), default=-1)


def _path(loc: tuple[int | str, ...]) -> str:
    """Return `messages[0].content` for ('messages', 0, 'content', 'str'), without union arms."""
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in {"str", "int"}:
            path += f".{part}" if path else part
    return path
