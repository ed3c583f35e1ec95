"""Tool calls as the official client asks for them, whole and streamed."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.whole_service import whole_service

HERMES = (
    "{% if tools %}TOOLS {{ tools | tojson }} say <tool_call>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}{% if m.tool_call_id %} ({{ m.tool_call_id }}){% endif %}\n{% endfor %}assistant: "
)
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "a < b",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
PICK: Any = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"color": {"$ref": "#/$defs/color"}},
            "required": ["color"],
            "additionalProperties": False,
            "$defs": {"color": {"enum": ["red", "blue"]}},
        },
    },
}
CHAT: Any = [{"role": "user", "content": "Add"}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture
def script() -> Script:
    return Script(reply=f"Let me.\n{CALL}\n{CALL}", chat_template=HERMES)


def ask(sidecar: Sidecar, *, stream: bool = False, **fields: Any) -> Any:
    """One chat; the message and its finish reason, put together from its chunks if streamed."""
    asked = {"model": "scripted", "messages": CHAT, "tools": [ADD], "max_tokens": 250}
    asked |= fields
    if not stream:
        choice = sidecar.openai.chat.completions.create(**asked).choices[0]
        calls = [
            (call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or []
        ]
        return choice.message.content, calls, choice.finish_reason
    content, finish = "", None
    found: dict[int, list[str]] = {}
    for chunk in sidecar.openai.chat.completions.create(**asked, stream=True):
        for piece in chunk.choices:
            content += piece.delta.content or ""
            finish = piece.finish_reason or finish
            for call in piece.delta.tool_calls or []:
                assert call.function is not None
                if call.id is not None:
                    found[call.index] = [call.id, call.function.name or "", ""]
                found[call.index][2] += call.function.arguments or ""
    return content or None, [tuple(found[index]) for index in sorted(found)], finish


@pytest.mark.parametrize("stream", [False, True])
def test_calls_that_the_model_chose(sidecar: Sidecar, stream: bool) -> None:
    """Beside what it says; each has an id of its own."""
    content, calls, finish = ask(sidecar, stream=stream)

    assert content.strip() == "Let me."
    assert [call[1:] for call in calls] == [("add", '{"a": 1}')] * 2
    assert len({call[0] for call in calls}) == 2
    assert finish == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_most(sidecar: Sidecar, stream: bool) -> None:
    """`parallel_tool_calls` false."""
    _, calls, _ = ask(sidecar, stream=stream, parallel_tool_calls=False)

    assert len(calls) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fields", [{"tools": [PICK]}, {"tool_choice": "none"}], ids=["not offered", "none"]
)
def test_what_may_not_be_called_is_said(
    sidecar: Sidecar, fields: dict[str, Any], stream: bool
) -> None:
    """A function that was not offered, or any with `none`."""
    content, calls, finish = ask(sidecar, stream=stream, **fields)

    assert content.count(CALL) == 2
    assert calls == []
    assert finish == "stop"


def test_a_conversation_with_calls_goes_through_the_template(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Tools as they came, arguments as an object, the result with the id of its call."""
    messages = [
        {"role": "user", "content": "Add"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    ask(sidecar, messages=messages, tools=[ADD])

    prompt = byte_tokenizer().decode(engine.submitted[0].prompt_ids)
    assert f"TOOLS {json.dumps([ADD])} say" in prompt
    assert 'assistant: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>' in prompt
    assert "tool: 2 (c1)" in prompt


def test_none_does_not_show_the_tools(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """As OpenAI means it."""
    ask(sidecar, tool_choice="none")

    assert "TOOLS" not in byte_tokenizer().decode(engine.submitted[0].prompt_ids)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A model of random weights: whatever it calls, it was made to."""
    with whole_service(tmp_path_factory.mktemp("tiny")) as (sidecar, _):
        yield sidecar


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool", [ADD, PICK], ids=["add", "pick"])
def test_a_named_function_is_called(service: Sidecar, tool: Any, stream: bool) -> None:
    """By any model, with arguments that fit."""
    function = tool["function"]
    choice = {"type": "function", "function": {"name": function["name"]}}

    content, calls, finish = ask(
        service,
        stream=stream,
        model="tiny",
        tools=[ADD, PICK],
        tool_choice=choice,
        max_tokens=200,
        seed=3,
    )

    ((id_, name, arguments),) = calls
    assert id_
    assert name == function["name"]
    jsonschema.validate(json.loads(arguments), function["parameters"])
    assert content is None
    assert finish == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_required_calls_some_function(service: Sidecar, stream: bool) -> None:
    """Whichever, with arguments that fit, references among them too."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (ADD, PICK)}
    names = set()
    for seed in range(6):
        content, calls, finish = ask(
            service,
            stream=stream,
            model="tiny",
            tools=[ADD, PICK],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=220,
            temperature=2,
            seed=seed,
        )
        if finish == "length":
            continue
        ((_, name, arguments),) = calls
        jsonschema.validate(json.loads(arguments), schemas[name])
        assert content is None
        assert finish == "tool_calls"
        names.add(name)
    assert names


def test_a_model_without_tools_says_so(service: Sidecar) -> None:
    """Rather than let the model guess."""
    with pytest.raises(openai.BadRequestError, match="does not know tools"):
        ask(service, model="tiny")
