"""Structured output from the official client to a real engine and back."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.whole_service import whole_service

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ada", "Bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHAT: list[Any] = [{"role": "user", "content": "Who?"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with whole_service(tmp_path_factory.mktemp("tiny")) as (sidecar, _):
        yield sidecar


def complete(service: Sidecar, **fields: Any) -> openai.types.Completion:
    done: openai.types.Completion = service.openai.completions.create(
        model="tiny", prompt="Who? ", max_tokens=150, seed=1, extra_body=fields
    )
    return done


FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_keeps_to_its_schema(service: Sidecar, stream: bool) -> None:
    """Whole and in pieces, and every choice of several."""
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": CHAT,
        "max_tokens": 150,
        "seed": 1,
        "response_format": FORMAT,
        "n": 2,
    }
    texts = ["", ""]
    if stream:
        for chunk in service.openai.chat.completions.create(**asked, stream=True):
            for piece in chunk.choices:
                texts[piece.index] += piece.delta.content or ""
    else:
        choices = service.openai.chat.completions.create(**asked).choices
        texts = [choice.message.content for choice in choices]

    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
        {"response_format": FORMAT},
    ],
    ids=["guided", "guided, as text", "structured_outputs", "response_format"],
)
def test_every_name_of_a_schema_is_known(service: Sidecar, fields: dict[str, Any]) -> None:
    """OpenAI's fields, vLLM's, and those that vLLM had before."""
    jsonschema.validate(json.loads(complete(service, **fields).choices[0].text), SCHEMA)


@pytest.mark.parametrize("prefix", ["guided", "structured_outputs"])
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("regex", "[a-c]{2,5}", "[a-c]{2,5}"),
        ("choice", ["red", "green"], "red|green"),
        ("grammar", 'root ::= "x" [0-9] "y"', "x[0-9]y"),
    ],
)
def test_expressions_choices_and_grammars(
    service: Sidecar, prefix: str, kind: str, value: Any, expected: str
) -> None:
    """The finish reason is that of an output that came to its end."""
    nested = prefix == "structured_outputs"
    done = complete(service, **({prefix: {kind: value}} if nested else {f"{prefix}_{kind}": value}))

    assert re.fullmatch(expected, done.choices[0].text)
    assert done.choices[0].finish_reason == "stop"


def test_json_object_is_any_object(service: Sidecar) -> None:
    """A random model does not end it by itself: what there is begins one."""
    done = service.openai.chat.completions.create(
        model="tiny",
        messages=CHAT,
        max_tokens=20,
        response_format={"type": "json_object"},
        logit_bias={},
    )

    assert (done.choices[0].message.content or "").lstrip().startswith("{")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(a"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a" * 5000}, "guided_regex"),
        ({"guided_json": {"type": "strang"}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": {"enum": ["x" * 70_000]}}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": {"type": "string", "pattern": "a?" * 2100}}, "guided_json"),
        ({"guided_json": {"patternProperties": {"a": {}, "a?" * 2100: {}}}}, "guided_json"),
        ({"guided_json": {"items": [{"pattern": "a?" * 2100}]}}, "guided_json"),
        ({"guided_grammar": "start: A\nA: /" + "a?" * 2100 + "/"}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a"] * 5000}, "guided_choice"),
        ({"guided_grammar": "root ::= nowhere"}, "guided_grammar"),
        ({"guided_grammar": "root ::= " + "(" * 9000}, "guided_grammar"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_regex": "a", "response_format": FORMAT}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
        ({"guided_regex": "a", "min_tokens": 3}, "min_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_cannot_be_kept_is_a_400_that_names_it(
    service: Sidecar, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """Found by the sidecar or by the engine, before the first byte of a stream too."""
    body = {"model": "tiny", "prompt": "Hi", "stream": stream, **fields}

    answer = service.public.post("/v1/completions", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert param.rsplit(".", maxsplit=1)[-1] in answer.json()["error"]["message"]


def test_requests_without_a_grammar_pass_those_whose_grammar_is_compiled(service: Sidecar) -> None:
    """A large schema is compiled beside the step loop; nobody waits for it but its own request."""
    fields = {f"field {i}": {"type": "string", "enum": [f"{i}", f"{i + 1}"]} for i in range(1000)}
    large = {"type": "object", "properties": fields}
    with ThreadPoolExecutor(4) as pool:
        slow = [
            pool.submit(complete, service, guided_json={**large, "title": f"number {i}"})
            for i in range(2)
        ]
        quick = service.openai.completions.create(model="tiny", prompt="Hi", max_tokens=3)
        for each in slow:
            assert each.result(timeout=60).choices[0].text.lstrip().startswith("{")

    assert quick.usage is not None
    assert quick.usage.completion_tokens > 0


def test_an_invalid_grammar_is_no_failure_of_the_service(service: Sidecar) -> None:
    """It counts neither as a request nor against the SLA."""
    before = service.public.get("/metrics").text
    service.public.post(
        "/v1/completions", json={"model": "tiny", "prompt": "Hi", "guided_regex": "(a"}
    )
    after = service.public.get("/metrics").text

    def requests(page: str) -> list[str]:
        return [line for line in page.splitlines() if line.startswith("paceline_requests")]

    assert requests(before) == requests(after) != []
