"""Nothing a client sends can stop the sidecar or the engine, and every refusal names its field."""

import json
from typing import Any

import httpx
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import ScriptedEngine

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "scripted", "prompt": "Hi"}

BODIES: dict[str, dict[str, Any]] = {
    "completions": TEXT,
    "chat/completions": CHAT,
    "embeddings": {"model": "scripted", "input": "Hi"},
    "score": {"model": "scripted", "text_1": "H", "text_2": "i"},
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def named(function: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": function}}


def called_with(arguments: str) -> dict[str, Any]:
    call = {"id": "1", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def defining(definitions: object) -> dict[str, Any]:
    parameters = {"type": "object", "$defs": definitions}
    return {"type": "function", "function": {"name": "look", "parameters": parameters}}


def post(sidecar: Sidecar, path: str, content: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **headers}
    return sidecar.public.post(f"/v1/{path}", content=content, headers=sent)


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        ("completions", {"prompt": 5}, "prompt"),
        ("completions", {"prompt": []}, "prompt"),
        ("completions", {"prompt": ""}, "prompt"),
        ("completions", {"prompt": [1, "a"]}, "prompt[1]"),
        ("completions", {"prompt": [[1, 2], [-1]]}, "prompt[1][0]"),
        ("completions", {"prompt": [99_999]}, "prompt"),
        ("completions", {"prompt": [2**40]}, "prompt[0]"),
        ("completions", {"prompt": [1.5]}, "prompt[0]"),
        ("completions", {"max_tokens": 0}, "max_tokens"),
        ("completions", {"max_tokens": "7"}, "max_tokens"),
        ("completions", {"max_tokens": 10**30}, "max_tokens"),
        ("completions", {"temperature": -1}, "temperature"),
        ("completions", {"temperature": 1e999}, "temperature"),
        ("completions", {"top_p": 0}, "top_p"),
        ("completions", {"seed": 2**64}, "seed"),
        ("completions", {"stop": ["a"] * 5}, "stop"),
        ("completions", {"stop": ""}, "stop"),
        ("completions", {"stop": "x" * 257}, "stop"),
        ("completions", {"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ("completions", {"n": 0}, "n"),
        ("completions", {"n": 129}, "n"),
        ("completions", {"n": 128, "prompt": ["a"] * 9}, "n"),
        ("completions", {"best_of": 3}, "best_of"),
        ("completions", {"best_of": 3, "n": 2}, "best_of"),
        ("completions", {"max_tokens": 0, "echo": False}, "max_tokens"),
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("completions", {"suffix": "x"}, "suffix"),
        ("completions", {"use_beam_search": True}, "use_beam_search"),
        ("completions", {"bad_words": ["no"]}, "bad_words"),
        ("completions", {"allowed_token_ids": [5]}, "allowed_token_ids"),
        ("completions", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ("completions", {"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ("completions", {"cache_salt": ""}, "cache_salt"),
        ("completions", {"priority": 0.5}, "priority"),
        ("completions", {"service_tier": "gold"}, "service_tier"),
        ("chat/completions", {"reasoning_effort": "high"}, "reasoning_effort"),
        ("chat/completions", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ("chat/completions", {"chat_template_kwargs": {"eos_token": ""}}, "chat_template_kwargs"),
        ("chat/completions", {"chat_template_kwargs": []}, "chat_template_kwargs"),
        ("completions", {"logit_bias": {"5": 101}}, "logit_bias"),
        ("completions", {"logit_bias": {"5": "much"}}, "logit_bias"),
        ("completions", {"logit_bias": {"five": 1}}, "logit_bias.five"),
        ("completions", {"logit_bias": {"-5": 1}}, "logit_bias"),
        ("completions", {"logit_bias": {"99999": 1}}, "logit_bias"),
        ("completions", {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
        ("completions", {"stop_token_ids": [99_999]}, "stop_token_ids"),
        ("completions", {"stop_token_ids": [-1]}, "stop_token_ids"),
        ("completions", {"stop": [str(i) for i in range(5000)]}, "stop"),
        ("completions", {"presence_penalty": 2.5}, "presence_penalty"),
        ("completions", {"frequency_penalty": -2.5}, "frequency_penalty"),
        ("completions", {"repetition_penalty": 0}, "repetition_penalty"),
        ("completions", {"repetition_penalty": 1000}, "repetition_penalty"),
        ("completions", {"min_p": 1.5}, "min_p"),
        ("completions", {"stream": "yes"}, "stream"),
        ("completions", {"stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
        ("completions", {"model": 3}, "model"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": ""}, "prompt"),
        ("embeddings", {"input": [99_999]}, "prompt"),
        ("embeddings", {"input": {}}, "input"),
        ("embeddings", {"dimensions": 64}, "dimensions"),
        ("embeddings", {"encoding_format": "int8"}, "encoding_format"),
        ("embeddings", {"input": "x" * 600}, "prompt"),
        ("score", {"text_1": []}, "text_1"),
        ("score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("score", {"text_2": ["a"] * 1025}, "text_2"),
        ("score", {"text_1": ""}, "text_1"),
        ("score", {"text_2": ["a", ""]}, "text_2"),
        ("score", {"text_2": 5}, "text_2"),
        ("score", {"text_1": "x" * 1100, "text_2": ["a"] * 1000}, "text_2"),
        ("completions", {"prompt": "x" * 3_000_000}, "prompt"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x" * 3_000_000}]},
            "prompt",
        ),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": "Hi"}, "messages"),
        ("chat/completions", {"messages": [{"role": "user"}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "pope", "content": ""}]}, "messages[0].role"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
        ),
        ("chat/completions", {"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ("chat/completions", {"logprobs": 1}, "logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"tools": [{"type": "function"}]}, "tools[0].function"),
        ("chat/completions", {"tools": [TOOL]}, "tools"),
        ("chat/completions", {"tools": [TOOL, TOOL]}, "tools"),
        ("chat/completions", {"tools": [TOOL] * 129}, "tools"),
        ("chat/completions", {"tool_choice": "required"}, "tool_choice"),
        ("chat/completions", {"tools": [TOOL], "tool_choice": named("nothing")}, "tool_choice"),
        ("chat/completions", {"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
        (
            "chat/completions",
            {"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"},
            "guided_regex",
        ),
        (
            "chat/completions",
            {"tools": [TOOL], "tool_choice": named("look"), "ignore_eos": True},
            "ignore_eos",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        (
            "chat/completions",
            {
                "messages": [
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "["}}],
                    }
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            "chat/completions",
            {"messages": [called_with('{"city": "\\ud800"}')]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            "chat/completions",
            {"tools": [defining([])], "tool_choice": "required"},
            "tools[0].function.parameters",
        ),
        ("completions", {"guided_json": "[" * 20_000}, "guided_json"),
        ("completions", {"guided_json": '"pattern": ' + " " * 60_000}, "guided_json"),
        ("chat/completions", {"response_format": {"type": "json"}}, "response_format.type"),
        ("chat/completions", {"functions": [{"name": "a"}]}, "functions"),
    ],
    ids=str,
)
def test_a_bad_field_is_named(
    sidecar_of_module: Sidecar, path: str, change: dict[str, Any], param: str
) -> None:
    """400, in the shape that the official clients read."""
    body = {**BODIES[path], **change}

    answer = post(sidecar_of_module, path, json.dumps(body).encode())

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "scripted", "prompt": "\xff"}',
        b'{"model": "scripted", "prompt": "\\ud800"}',
        b'{"model": "scripted", "prompt": "Hi", "temperature": NaN}',
        b'{"model": "scripted", "prompt": "Hi", "top_p": Infinity}',
        b'{"model": "scripted", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model": "scripted", "prompt": "Hi", "x": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"model": "scripted", "prompt": [' + b"null," * 400_000 + b"null]}",
        b'{"model": "scripted", "prompt": ' + b"9" * 100_000 + b"}",
    ],
    ids=[
        *("empty", "cut", "null", "list", "string", "not-utf8", "text-not-utf8", "surrogate"),
        *("nan", "infinity", "deep-list", "deep-object", "long-list-of-nulls", "huge-number"),
    ],
)
def test_a_broken_body_is_a_400_and_the_next_request_is_served(
    sidecar_of_module: Sidecar, content: bytes
) -> None:
    """Whatever it is made of."""
    answer = post(sidecar_of_module, "completions", content)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert post(sidecar_of_module, "completions", json.dumps(TEXT).encode()).status_code == 200


def test_unknown_fields_and_harmless_values_are_ignored(sidecar_of_module: Sidecar) -> None:
    """As OpenAI does: clients send what they know."""
    body = {
        **TEXT,
        "n": 1,
        "echo": False,
        "logprobs": None,
        "presence_penalty": 0,
        "metadata": {"a": 1},
    }

    assert post(sidecar_of_module, "completions", json.dumps(body).encode()).status_code == 200


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
def test_a_body_above_the_limit_is_413(sidecar_of_module: Sidecar, declared: bool) -> None:
    """Counted while it comes when its length is not declared."""
    megabyte = b" " * 1024 * 1024
    content = megabyte * 5 if declared else iter([megabyte] * 5)

    answer = sidecar_of_module.public.post("/v1/completions", content=content)

    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-paceline-lane", "express"),
        ("x-request-timeout-ms", "soon"),
        ("x-request-timeout-ms", "-5"),
        ("x-request-timeout-ms", "nan"),
    ],
)
def test_a_bad_header_is_named(sidecar_of_module: Sidecar, header: str, value: str) -> None:
    """As a bad field is."""
    answer = post(sidecar_of_module, "completions", json.dumps(TEXT).encode(), **{header: value})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == header


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/v1/completions", 405), ("GET", "/runtime/limits", 404)],
)
def test_a_wrong_path_or_method_is_openai_shaped(
    sidecar_of_module: Sidecar, method: str, path: str, status: int
) -> None:
    """The runtime API is never on the public port."""
    answer = sidecar_of_module.public.request(method, path)

    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("offered", "kept"), [("abc-1", True), ("a b\tc", False), ("x" * 200, False)]
)
def test_a_request_id_is_kept_when_it_is_safe(
    sidecar_of_module: Sidecar, offered: str, kept: bool
) -> None:
    """It ends up in logs."""
    answer = post(
        sidecar_of_module, "completions", json.dumps(TEXT).encode(), **{"x-request-id": offered}
    )

    assert (answer.headers["x-request-id"] == offered) is kept


def test_nothing_of_it_reached_the_engine(
    sidecar_of_module: Sidecar, engine_of_module: ScriptedEngine
) -> None:
    """Every prompt that did was one that the model can take."""
    assert sidecar_of_module.ready()
    assert all(submit.prompt_ids == [39, 72] for submit in engine_of_module.submitted)
