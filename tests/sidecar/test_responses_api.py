"""The Responses API, asked by the official `openai` client as it is."""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine

# A template that shows tools, as Qwen's does.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call | tojson }}{% endfor %};{% endfor %}"
)
REPLY = "Grüße!"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells it.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


class City(BaseModel):
    """An answer with a shape."""

    name: str


@pytest.fixture
def script() -> Script:
    return Script(reply=REPLY, cached_tokens=4, chat_template=TEMPLATE)


def prompt_of(engine: ScriptedEngine) -> str:
    text: str = byte_tokenizer().decode(engine.submitted[-1].prompt_ids, skip_special_tokens=False)
    return text


def test_a_text_is_answered_with_text_and_usage(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Instructions come first, as a system message; nothing is stored, and the answer says so."""
    answer = sidecar.openai.responses.create(
        model="scripted",
        instructions="Be kind.",
        input="Hi",
        temperature=0.5,
        metadata={"a": "b"},
        store=True,
    )

    assert prompt_of(engine) == "system:Be kind.;user:Hi;"
    assert engine.submitted[0].sampling.temperature == 0.5
    assert answer.output_text == REPLY
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.metadata == {"a": "b"}
    assert answer.to_dict()["store"] is False
    assert answer.usage is not None
    assert answer.usage.input_tokens == len("system:Be kind.;user:Hi;")
    assert answer.usage.input_tokens_details.cached_tokens == 4
    assert answer.usage.output_tokens == len(REPLY.encode()) + 1


def test_a_stream_tells_of_each_item_from_its_beginning_to_its_end(sidecar: Sidecar) -> None:
    """In the order and with the numbers that the API has; the pieces add up."""
    events = list(sidecar.openai.responses.create(model="scripted", input="Hi", stream=True))

    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(pieces) == REPLY
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == REPLY
    assert events[-1].response.usage is not None
    assert events[0].type == "response.created"
    assert events[0].response.id == events[-1].response.id


def test_the_clients_own_helper_follows_a_stream(sidecar: Sidecar) -> None:
    """It builds a response from the events and compares as it goes."""
    with sidecar.openai.responses.stream(model="scripted", input="Hi") as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()

    assert final.output_text == REPLY


async def test_the_async_client_works_as_well(sidecar: Sidecar) -> None:
    """With one await more."""
    async with AsyncOpenAI(base_url=f"{sidecar.url}/v1", api_key="none", timeout=30) as client:
        stream = await client.responses.create(model="scripted", input="Hi", stream=True)
        kinds = [event.type async for event in stream]

    assert kinds[-1] == "response.completed"


def test_an_answer_that_is_cut_is_incomplete(sidecar: Sidecar) -> None:
    """With the reason, in one piece and streamed."""
    asked: Any = {"model": "scripted", "input": "Hi", "max_output_tokens": 16}

    short = sidecar.openai.responses.create(**{**asked, "max_output_tokens": 2})
    events = list(sidecar.openai.responses.create(**{**asked, "max_output_tokens": 2}, stream=True))

    assert short.status == "incomplete"
    assert short.incomplete_details is not None
    assert short.incomplete_details.reason == "max_output_tokens"
    assert short.output_text == "Gr"
    assert events[-1].type == "response.incomplete"
    assert events[-2].type == "response.output_item.done"
    assert events[-2].item.to_dict()["status"] == "incomplete"


def test_a_schema_is_followed_and_parsed(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """`text.format` reaches the engine as a grammar; the client reads the answer with its type."""
    script.reply = '{"name": "Bonn"}'

    answer = sidecar.openai.responses.parse(model="scripted", input="Hi", text_format=City)

    assert answer.output_parsed == City(name="Bonn")
    grammar = engine.submitted[0].grammar
    assert grammar is not None
    assert "name" in json.loads(grammar.text)["properties"]


def test_a_tool_is_called_and_its_result_goes_back(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """The items of an answer are the next request's input, as they are."""
    script.reply = CALL
    first = sidecar.openai.responses.create(model="scripted", input="Hi", tools=[WEATHER])
    (call,) = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Bonn"})

    script.reply = REPLY
    conversation: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        *[item.to_dict() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
    ]
    second = sidecar.openai.responses.create(model="scripted", input=conversation, tools=[WEATHER])

    assert second.output_text == REPLY
    prompt = prompt_of(engine)
    assert prompt.startswith('[{"type": "function", "function": {"name": "weather"')
    assert '"arguments": {"city": "Bonn"}' in prompt
    assert prompt.endswith(";tool:rain;")


def test_a_call_is_streamed_as_an_item_of_its_own(sidecar: Sidecar, script: Script) -> None:
    """Text, then the call's arguments in pieces that add up."""
    script.reply = "Let me see." + CALL

    events = list(
        sidecar.openai.responses.create(model="scripted", input="Hi", tools=[WEATHER], stream=True)
    )

    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == ["message", "function_call"]
    pieces = [
        event.delta for event in events if event.type == "response.function_call_arguments.delta"
    ]
    assert json.loads("".join(pieces)) == {"city": "Bonn"}
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.name, json.loads(event.arguments)) for event in done] == [
        ("weather", {"city": "Bonn"})
    ]
    assert events[-1].type == "response.completed"
    assert [item.type for item in events[-1].response.output] == ["message", "function_call"]


@pytest.mark.parametrize(
    ("choice", "reply"),
    [
        ("required", '[{"name": "weather", "parameters": {"city": "Bonn"}}]'),
        ({"type": "function", "name": "weather"}, '{"city": "Bonn"}'),
    ],
    ids=["any", "named"],
)
def test_a_call_can_be_insisted_on(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script, choice: Any, reply: str
) -> None:
    """By a grammar, as in a chat."""
    script.reply = reply

    answer = sidecar.openai.responses.create(
        model="scripted", input="Hi", tools=[WEATHER], tool_choice=choice
    )

    assert engine.submitted[0].grammar is not None
    (call,) = answer.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert json.loads(call.arguments) == {"city": "Bonn"}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"extra_body": {"stop": ["x"]}}, "stop"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        (
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "["}]},
            "input[0].arguments",
        ),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort"),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_by_name(
    sidecar: Sidecar, asked: dict[str, Any], param: str | None
) -> None:
    """Nothing that would change the answer is ignored."""
    with pytest.raises(openai.BadRequestError) as caught:
        sidecar.openai.responses.create(**{"model": "scripted", "input": "Hi", **asked})

    if param is None:
        assert str(caught.value.param).startswith("input[0].content")
    else:
        assert caught.value.param == param


def test_a_response_cannot_be_asked_for_again(sidecar: Sidecar) -> None:
    """None is kept."""
    answer = sidecar.openai.responses.create(model="scripted", input="Hi")

    with pytest.raises(openai.NotFoundError):
        sidecar.openai.responses.retrieve(answer.id)


def test_a_stream_that_breaks_ends_with_a_failed_response(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """The status is sent already: the last event has the reason."""
    script.hold_after = 2
    stream = sidecar.openai.responses.create(model="scripted", input="Hi", stream=True)
    events = [next(stream) for _ in range(5)]

    engine.stop()
    events += list(stream)

    assert events[-1].type == "response.failed"
    assert events[-1].response.status == "failed"
    assert events[-1].response.error is not None
