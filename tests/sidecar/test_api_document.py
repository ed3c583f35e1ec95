"""`/openapi.json` describes the public port as it is: schemathesis tries what it says."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from jsonschema import Draft202012Validator
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.routing import Route

from paceline_sidecar.app import create_public_app
from paceline_sidecar.service import Service
from paceline_sidecar.settings import SidecarSettings
from paceline_sidecar.zmq_engine import ZmqEngine
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.waiting import wait_until

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    unsupported_method,
]


@pytest.fixture
def document(sidecar_of_module: Sidecar) -> schemathesis.BaseSchema:
    """The document as a client reads it."""
    config = SchemathesisConfig.from_dict(
        {"phases": {"coverage": {"enabled": False}, "examples": {"enabled": False}}}
    )
    return schemathesis.openapi.from_url(f"{sidecar_of_module.url}/openapi.json", config=config)


described = schemathesis.pytest.from_fixture("document")


@described.parametrize()
@settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)
def test_answers_are_what_the_document_says(case: Case[Any]) -> None:
    """Whatever is sent, right or wrong: never a 500, never an answer of another shape."""
    case.call_and_validate(checks=CHECKS, timeout=60)


def test_every_path_is_described(sidecar_of_module: Sidecar) -> None:
    """And nothing that is not there."""
    paths = sidecar_of_module.public.get("/openapi.json").json()["paths"]
    told = {(method.upper(), path) for path, methods in paths.items() for method in methods}

    routed = served_paths(sidecar_of_module.settings)
    assert routed <= told
    # Plain routes are not in FastAPI's document: they are there where they judge a body.
    for method, path in told - routed:
        assert sidecar_of_module.public.request(method, path).status_code == 400, path


def served_paths(settings: SidecarSettings) -> set[tuple[str, str]]:
    """Methods and paths of the public port, but those that serve the document."""
    service = Service(ZmqEngine(settings.socket_path), run_dir=settings.run_dir)
    routes = create_public_app(service, settings, batch_dir=settings.run_dir).routes
    own = {"/openapi.json", "/docs"}
    return {
        (method, route.path.replace(":path}", "}"))
        for route in plain_routes(routes)
        if route.path not in own
        for method in route.methods or ()
    }


def plain_routes(routes: Iterable[object]) -> Iterator[Route]:
    """Routes of the application and of the routers that it includes."""
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            yield from plain_routes(included.routes)
        elif isinstance(route, Route):
            yield route


def test_schemas_are_schemas(sidecar_of_module: Sidecar) -> None:
    """Each is valid JSON Schema, and refers to others that are there."""
    document = sidecar_of_module.public.get("/openapi.json").json()

    for name, schema in document["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        for reference in _references(schema):
            target = reference.removeprefix("#/components/schemas/")
            assert target in document["components"]["schemas"], (name, reference)


def _references(schema: object) -> list[str]:
    if isinstance(schema, list):
        return [found for part in schema for found in _references(part)]
    if not isinstance(schema, dict):
        return []
    own = [schema["$ref"]] if isinstance(schema.get("$ref"), str) else []
    return own + [found for part in schema.values() for found in _references(part)]


CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TEXT = {"prompt": "Hi", "max_tokens": 4}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {**CHAT, "prompt_logprobs": 1}),
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL], "tool_choice": "required"}),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
        },
    ),
    ("/v1/completions", TEXT),
    ("/v1/completions", {**TEXT, "echo": True, "logprobs": 2, "n": 2}),
    ("/v1/completions", {**TEXT, "prompt_logprobs": 1}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 16}),
    ("/v1/responses", {"input": [{"role": "user", "content": "Hi"}], "store": False}),
    ("/v1/messages", CHAT),
    ("/v1/messages", {**CHAT, "system": "Be kind.", "stop_sequences": ["x"]}),
    ("/v1/messages/count_tokens", {"messages": CHAT["messages"]}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("/v1/score", {"text_1": "a", "text_2": ["b", "c"]}),
    ("/tokenize", {"prompt": "Hi", "return_token_strs": True}),
    ("/tokenize", {"messages": CHAT["messages"]}),
    ("/detokenize", {"tokens": [39, 72]}),
]


def checker(document: Any, schema: Any) -> Draft202012Validator:
    """Check a value by one schema of the document."""
    return Draft202012Validator({**schema, "components": document["components"]})


@pytest.mark.parametrize(("path", "body"), GOOD, ids=str)
def test_every_kind_of_answer_is_described(
    sidecar_of_module: Sidecar, path: str, body: dict[str, Any]
) -> None:
    """Request and answer both: random requests are seldom right."""
    document = sidecar_of_module.public.get("/openapi.json").json()
    operation = document["paths"][path]["post"]

    answer = sidecar_of_module.public.post(path, json=body)

    assert answer.status_code == 200, answer.text
    asked = operation["requestBody"]["content"]["application/json"]["schema"]
    checker(document, asked).validate(body)
    told = operation["responses"]["200"]["content"]["application/json"]["schema"]
    checker(document, told).validate(answer.json())


@pytest.mark.parametrize(
    ("path", "body"), [each for each in GOOD[:8] if "prompt_logprobs" not in each[1]], ids=str
)
def test_every_event_is_described(
    sidecar_of_module: Sidecar, path: str, body: dict[str, Any]
) -> None:
    """Under `x-event`: OpenAPI 3.1 has no word for it."""
    document = sidecar_of_module.public.get("/openapi.json").json()
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}

    answer = sidecar_of_module.public.post(path, json=streamed)

    events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
    assert events.pop() == "[DONE]"
    assert events
    for event in events:
        checker(document, content["text/event-stream"]["x-event"]).validate(json.loads(event))


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/scripted", "/v1/files", "/v1/batches", "/health/ready"]
)
def test_what_is_asked_for_is_described(sidecar_of_module: Sidecar, path: str) -> None:
    """Models with the fields that vLLM adds."""
    document = sidecar_of_module.public.get("/openapi.json").json()
    answer = sidecar_of_module.public.get(path)
    written = path.replace("scripted", "{name}")
    content = document["paths"][written]["get"]["responses"]["200"]["content"]

    assert answer.status_code == 200
    checker(document, content["application/json"]["schema"]).validate(answer.json())


def test_people_can_read_it(sidecar_of_module: Sidecar) -> None:
    """The page leads to the document."""
    page = sidecar_of_module.public.get("/docs")

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "/openapi.json" in page.text


@pytest.mark.usefixtures("engine")
def test_it_says_that_a_key_is_needed_and_needs_none(
    start: Callable[..., Sidecar], tmp_path: Path
) -> None:
    """Tools fetch it before they are given a key."""
    keys = tmp_path / "keys"
    keys.write_text("one")
    sidecar = start(api_keys_file=keys)
    wait_until(sidecar.ready)

    document = sidecar.public.get("/openapi.json").json()

    assert document["security"] == [{"key": []}]
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


@pytest.mark.usefixtures("engine")
def test_it_can_be_switched_off(start: Callable[..., Sidecar]) -> None:
    """Then nothing is said of the API."""
    sidecar = start(docs=False)
    wait_until(sidecar.ready)

    assert sidecar.public.get("/openapi.json").status_code == 404
    assert sidecar.public.get("/docs").status_code == 404
