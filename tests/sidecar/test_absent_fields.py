"""A field that is null is one that was not sent, and `model` may be left out."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from paceline_sidecar.anthropic.request import MessagesRequest
from paceline_sidecar.openai.api_request import ApiRequest, parse
from paceline_sidecar.openai.chat_request import ChatRequest
from paceline_sidecar.openai.completion_request import CompletionRequest
from paceline_sidecar.openai.pooling_requests import EmbeddingsRequest, ScoreRequest
from paceline_sidecar.openai.tokenize_request import DetokenizeRequest, TokenizeRequest
from paceline_sidecar.responses_api.request import ResponsesRequest
from paceline_testing.running_sidecar import Sidecar

PLAIN: dict[str, tuple[type[ApiRequest], dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "Hi", "max_tokens": 3}),
    "/v1/chat/completions": (
        ChatRequest,
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    ),
    "/v1/embeddings": (EmbeddingsRequest, {"input": "Hi"}),
    "/v1/score": (ScoreRequest, {"text_1": "a", "text_2": "b"}),
    "/v1/responses": (ResponsesRequest, {"input": "Hi", "max_output_tokens": 3}),
    "/v1/messages": (
        MessagesRequest,
        {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    ),
    "/tokenize": (TokenizeRequest, {"prompt": "Hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [39, 72]}),
}


def steady(answer: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from answer to answer."""
    passing = {"id", "created", "created_at", "completed_at", "output"}
    return {name: value for name, value in answer.items() if name not in passing}


@pytest.mark.parametrize("path", PLAIN)
def test_nulls_are_taken_as_absent(sidecar_of_module: Sidecar, path: str) -> None:
    """Typed clients send null for whatever nobody has set."""
    kind, body = PLAIN[path]
    optional = [name for name, field in kind.model_fields.items() if not field.is_required()]
    nulls = dict.fromkeys([*optional, *kind.unsupported, "unknown"])

    plain = sidecar_of_module.public.post(path, json=body)
    with_nulls = sidecar_of_module.public.post(path, json={**nulls, **body})

    assert plain.status_code == 200, plain.text
    assert with_nulls.status_code == 200, with_nulls.text
    assert steady(with_nulls.json()) == steady(plain.json())


@pytest.mark.parametrize("path", PLAIN)
def test_one_served_model_needs_no_name(sidecar_of_module: Sidecar, path: str) -> None:
    """The answer says who gave it."""
    answer = sidecar_of_module.public.post(path, json=PLAIN[path][1])

    assert answer.status_code == 200, answer.text
    assert answer.json().get("model", "scripted") == "scripted"


def test_nulls_deeper_down_are_absent_as_well() -> None:
    """Of the objects inside a body, too."""
    body = parse(
        ChatRequest,
        b'{"messages": [{"role": "assistant", "content": null, "tool_calls":'
        b' [{"id": "1", "type": null, "function": {"name": "f", "arguments": "{}"}}]}],'
        b' "stream_options": {"include_usage": null}}',
    )

    assert body.stream_options is not None
    assert body.stream_options.include_usage is False
    assert (body.messages[0].tool_calls or [])[0].type == "function"


def test_a_null_where_a_value_is_needed_is_named(sidecar_of_module: Sidecar) -> None:
    """Absent is absent."""
    answer = sidecar_of_module.public.post("/v1/completions", json={"prompt": None})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("kind", [kind for kind, _ in PLAIN.values()])
def test_every_object_of_a_body_takes_null_as_absent(kind: type[BaseModel]) -> None:
    """A new object inside a request cannot forget it."""
    for model in models_of(kind):
        optional = {name for name, field in model.model_fields.items() if not field.is_required()}
        decorators = model.__pydantic_decorators__.model_validators
        assert not optional or "_null_is_absent" in decorators, model


def models_of(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield kind
    for field in kind.model_fields.values():
        yield from _in(field.annotation)


def _in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from models_of(annotation)
    elif get_origin(annotation) is not None:
        for part in get_args(annotation):
            yield from _in(part)
