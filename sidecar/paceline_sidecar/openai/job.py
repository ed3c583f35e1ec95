"""From a validated request to its job."""

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import msgspec
from starlette.datastructures import Headers

from paceline_sidecar.errors import InvalidRequest
from paceline_sidecar.keys import ANYONE, Principal
from paceline_sidecar.openai.api_request import GenerationRequest
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.submit import Job
from paceline_sidecar.text.codec import Codec
from paceline_sidecar.tracing.trace import Trace
from paceline_wire import Sampling
from paceline_wire.limits import Lane

# Text has three to four bytes a token, in English as in Chinese; the estimate lives until the
# tokenizer is done.
_BYTES_PER_TOKEN = 4

Encode = Callable[[Codec], Awaitable[list[list[int]]]]


@dataclass(frozen=True, slots=True)
class Caller:
    """What the headers, the key and the model's name say of a request."""

    arrived_at: float
    lane: Lane = "interactive"
    timeout_s: float | None = None
    principal: Principal = ANYONE
    cache_salt: str = ""
    adapter: str = ""
    """LoRA adapter that the request names as its model."""
    trace: Trace | None = None
    """What it tells of itself, where it is traced."""


def read_lane(headers: Headers, asked: Lane) -> Lane:
    """`x-paceline-lane`; without it what the body asks for."""
    value = headers.get("x-paceline-lane", asked).strip().lower()
    for lane in get_args(Lane):
        if value == lane:
            return lane  # type: ignore[no-any-return] # get_args forgets that it is a Lane
    message = f"x-paceline-lane is interactive or batch, got {value[:50]!r}"
    raise InvalidRequest(message, param="x-paceline-lane")


def read_timeout_s(headers: Headers) -> float | None:
    """`x-request-timeout-ms`, in seconds."""
    value = headers.get("x-request-timeout-ms")
    if value is None:
        return None
    try:
        timeout_ms = float(value)
    except ValueError:
        timeout_ms = math.nan
    if not (math.isfinite(timeout_ms) and timeout_ms > 0):
        message = f"x-request-timeout-ms is a positive number, got {value[:50]!r}"
        raise InvalidRequest(message, param="x-request-timeout-ms")
    return timeout_ms / 1e3


def completion_job(body: CompletionRequest, caller: Caller) -> Job:
    """Every prompt of a completion request."""
    prompts = body.prompts
    sampling = msgspec.structs.replace(
        _sampling(body), logprobs=body.logprobs, prompt_logprobs=body.requested_prompt_logprobs
    )
    job = _job(body, caller, sampling, [estimate(prompt) for prompt in prompts], encoder(prompts))
    return replace(
        job,
        echo=tuple(prompts) if body.echo else (),
        shows_output=body.max_tokens != 0,
    )


def chat_job(body: ChatRequest, caller: Caller) -> Job:
    """The one prompt that a conversation makes."""
    messages = [message.as_template_input() for message in body.messages]
    tools = None
    if body.tools and body.tool_choice != "none":
        tools = [tool.as_template_input() for tool in body.tools]
    texts = ((each["content"], each.get("reasoning_content", "")) for each in messages)
    tokens = sum(_estimate_of(*each) for each in texts)
    tokens += estimate(json.dumps(tools)) if tools else 0
    # A model that must call needs no instructions: the grammar enforces the call.
    may_choose = tools is not None and not body.must_call
    sampling = msgspec.structs.replace(
        _sampling(body),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
    )
    encode = partial(_encode_chat, messages, tools, body)
    job = _job(body, caller, sampling, [tokens], encode)
    # What marks a call is a special token to some tokenizers.
    return replace(job, shows_special_tokens=may_choose)


def _sampling(body: GenerationRequest) -> Sampling:
    wanted = body.requested_tokens
    if wanted is not None and body.min_tokens > wanted:
        message = f"min_tokens ({body.min_tokens}) is above the maximum of {wanted} tokens"
        raise InvalidRequest(message, param="min_tokens")
    return Sampling(
        max_tokens=wanted or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=(1.0 if body.repetition_penalty is None else body.repetition_penalty),
        min_p=body.min_p or 0.0,
        logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()},
    )


def _job(
    body: GenerationRequest,
    caller: Caller,
    sampling: Sampling,
    estimates: list[int],
    encode: Encode,
) -> Job:
    num_choices = body.n or 1
    structure = body.structure
    # Only the first choice computes its prompt, the others find it.
    alone = [1] * (num_choices - 1)
    return Job(
        sampling=sampling,
        stops=body.stops,
        estimates=[each for first in estimates for each in (first, *alone)],
        encode=encode,
        num_choices=num_choices,
        items_param="n" if num_choices > 1 else "prompt",
        grammar=structure.grammar if structure else None,
        grammar_param=structure.param if structure else "",
        lane=caller.lane,
        arrived_at=caller.arrived_at,
        timeout_s=caller.timeout_s,
        principal=caller.principal,
        cache_salt=caller.cache_salt,
        adapter=caller.adapter,
        trace=caller.trace,
    )


def estimate(prompt: str | list[int]) -> int:
    """Tokens of a prompt, until the tokenizer says."""
    return _estimate_of(prompt) if isinstance(prompt, str) else len(prompt)


def _estimate_of(*texts: str) -> int:
    num_bytes = sum(
        len(text) if text.isascii() else len(text.encode(errors="surrogatepass")) for text in texts
    )
    return num_bytes // _BYTES_PER_TOKEN + 1


def encoder(prompts: list[str | list[int]]) -> Encode:
    """Tokens of plain prompts; those that are tokens already stay as they are."""

    async def encode(codec: Codec) -> list[list[int]]:
        return [
            await codec.encode_text(prompt) if isinstance(prompt, str) else prompt
            for prompt in prompts
        ]

    return encode


async def _encode_chat(
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    body: ChatRequest,
    codec: Codec,
) -> list[list[int]]:
    if tools and not body.must_call and codec.tool_style is None:
        message = (
            "tools: the served model's chat template does not know tools;"
            " tool_choice `required` or a named function works without"
        )
        raise InvalidRequest(message, param="tools")
    if body.reasoning_effort and not codec.knows_variable("reasoning_effort"):
        message = "reasoning_effort: the served model's chat template does not know it"
        raise InvalidRequest(message, param="reasoning_effort", code="unsupported")
    return [await codec.encode_chat(messages, tools, body.template_variables)]
