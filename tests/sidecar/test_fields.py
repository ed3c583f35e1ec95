"""No field that OpenAI's client or vLLM knows is ignored, and the page tells what becomes of it."""

from typing import Any

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from paceline_sidecar.anthropic.request import CountTokensRequest, MessagesRequest
from paceline_sidecar.openai.api_document import OPERATIONS
from paceline_sidecar.openai.api_request import ApiRequest
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest
from paceline_sidecar.responses_api.request import ResponsesRequest
from paceline_testing.running_sidecar import Sidecar
from reference_pages.openai_fields import LABELS, REASONS

KINDS = {op.path: op.body for op in OPERATIONS if op.body and issubclass(op.body, ApiRequest)}

# What vLLM's ChatCompletionRequest has beyond OpenAI's; those of render endpoints are left out.
OF_VLLM = [
    "add_generation_prompt",
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "continue_final_message",
    "documents",
    "ec_transfer_params",
    "echo",
    "ignore_eos",
    "include_reasoning",
    "include_stop_str_in_output",
    "kv_transfer_params",
    "length_penalty",
    "logprob_token_ids",
    "media_io_kwargs",
    "min_p",
    "min_tokens",
    "mm_processor_kwargs",
    "priority",
    "prompt_logprobs",
    "repetition_detection",
    "repetition_penalty",
    "request_id",
    "return_prompt_text",
    "return_token_ids",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "session_id",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "vllm_xargs",
    "watermarking",
]


def known(kind: type[ApiRequest]) -> set[str]:
    return kind.model_fields.keys() | kind.unsupported.keys() | LABELS.keys()


@pytest.mark.parametrize(
    ("kind", "official"),
    [
        (ChatRequest, chat_create_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ResponsesRequest, response_create_params.ResponseCreateParamsBase),
        (MessagesRequest, message_create_params.MessageCreateParamsBase),
        (CountTokensRequest, message_count_tokens_params.MessageCountTokensParams),
        (EmbeddingsRequest, embedding_create_params.EmbeddingCreateParams),
    ],
)
def test_every_field_of_the_official_client_is_known(
    kind: type[ApiRequest], official: type[Any]
) -> None:
    """A newer client may bring fields that nobody here has heard of."""
    assert official.__annotations__.keys() <= known(kind)


def test_every_field_of_vllm_is_known() -> None:
    """Served, refused, or a label."""
    assert set(OF_VLLM) <= known(ChatRequest)


@pytest.mark.parametrize("path", KINDS)
def test_every_refusal_has_a_reason(path: str) -> None:
    """Whoever is refused may ask why."""
    assert KINDS[path].unsupported.keys() <= REASONS.keys()


@pytest.mark.parametrize("path", KINDS)
def test_no_field_is_both_served_and_refused(path: str) -> None:
    """The table has one word for each."""
    kind = KINDS[path]

    assert not kind.unsupported.keys() & kind.model_fields.keys()
    assert not kind.unsupported.keys() & LABELS.keys()


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, kind in KINDS.items() for name in kind.unsupported]
)
def test_a_refused_field_is_named(sidecar_of_module: Sidecar, path: str, name: str) -> None:
    """On the wire, with a value that no field takes for harmless."""
    answer = sidecar_of_module.public.post(path, json={**BODIES[path], name: ["no such value"]})

    assert answer.status_code == 400
    error = answer.json()["error"]
    if path.startswith("/v1/messages"):  # Anthropic's errors have no field of their own for it
        assert f"`{name}`" in error["message"]
    else:
        assert (error["param"], error["code"]) == (name, "unsupported")


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (path, name, value)
        for path, kind in KINDS.items()
        for name, values in kind.unsupported.items()
        for value in values
    ],
)
def test_a_value_that_asks_for_nothing_is_taken(
    sidecar_of_module: Sidecar, path: str, name: str, value: object
) -> None:
    """Typed clients send the defaults of their own types."""
    answer = sidecar_of_module.public.post(path, json={**BODIES[path], name: value})

    assert answer.status_code == 200, answer.text


BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/score": {"text_1": "a", "text_2": "b"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [39]},
}
