"""The Messages API, asked by the official `anthropic` client as it is."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}"
    "{% if enable_thinking is defined %}thinking={{ enable_thinking }};{% endif %}"
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls %}{{ call | tojson }}{% endfor %};{% endfor %}"
)
REPLY = "Grüße!"
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Bonn"}}</tool_call>'
WEATHER: Any = {
    "name": "weather",
    "description": "Tells it.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
HI: Any = [{"role": "user", "content": "Hi"}]


class City(BaseModel):
    """An answer with a shape."""

    name: str


@pytest.fixture
def script() -> Script:
    return Script(reply=REPLY, cached_tokens=4, chat_template=TEMPLATE)


@pytest.fixture
def client(sidecar: Sidecar) -> Iterator[Anthropic]:
    with Anthropic(base_url=sidecar.url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def prompt_of(engine: ScriptedEngine) -> str:
    text: str = byte_tokenizer().decode(engine.submitted[-1].prompt_ids, skip_special_tokens=False)
    return text


def test_a_message_is_answered(client: Anthropic, engine: ScriptedEngine) -> None:
    """What was found in the prefix cache is counted apart from the input."""
    answer = client.messages.create(
        model="scripted",
        max_tokens=100,
        system="Be kind.",
        messages=HI,
        extra_body={"temperature": 0.5, "top_k": 3},
    )

    prompt = "system:Be kind.;user:Hi;"
    assert prompt_of(engine) == prompt
    sampling = engine.submitted[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (100, 0.5, 3)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": REPLY}]
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == (
        "assistant",
        "end_turn",
        None,
    )
    assert answer.usage.input_tokens == len(prompt) - 4
    assert answer.usage.cache_read_input_tokens == 4
    assert answer.usage.output_tokens == len(REPLY.encode()) + 1


def test_a_stream_has_the_events_of_the_api(client: Anthropic) -> None:
    """Message, blocks, deltas, in order; the usage comes with the end."""
    events = list(client.messages.create(model="scripted", max_tokens=9, messages=HI, stream=True))

    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert events[-2].type == "message_delta"
    assert events[-2].delta.stop_reason == "end_turn"
    assert events[-2].usage.output_tokens == len(REPLY.encode()) + 1


def test_the_clients_own_helper_follows_a_stream(client: Anthropic) -> None:
    """It builds the message from the events."""
    with client.messages.stream(model="scripted", max_tokens=99, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()

    assert text == REPLY
    assert final.content[0].to_dict() == {"type": "text", "text": REPLY}
    assert final.usage.output_tokens == len(REPLY.encode()) + 1


async def test_the_async_client_works_as_well(sidecar: Sidecar) -> None:
    """With one await more."""
    async with (
        AsyncAnthropic(base_url=sidecar.url, api_key="none", timeout=30) as client,
        client.messages.stream(model="scripted", max_tokens=99, messages=HI) as stream,
    ):
        final = await stream.get_final_message()

    assert final.stop_reason == "end_turn"


def test_how_it_ended_is_told(client: Anthropic) -> None:
    """Cut at the maximum, or by a stop sequence, and by which."""
    cut = client.messages.create(model="scripted", max_tokens=2, messages=HI)
    stopped = client.messages.create(
        model="scripted", max_tokens=99, messages=HI, stop_sequences=["zz", "üß"]
    )

    assert cut.stop_reason == "max_tokens"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "üß")
    assert stopped.content[0].to_dict()["text"] == "Gr"


def test_a_tool_is_used_and_its_result_goes_back(
    client: Anthropic, engine: ScriptedEngine, script: Script
) -> None:
    """The content of an answer is the next request's, as it is."""
    script.reply = "Let me see." + CALL
    first = client.messages.create(model="scripted", max_tokens=200, messages=HI, tools=[WEATHER])
    text, use = first.content
    assert first.stop_reason == "tool_use"
    assert text.type == "text"
    assert use.type == "tool_use"
    assert (use.name, use.input) == ("weather", {"city": "Bonn"})

    script.reply = REPLY
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
    conversation: Any = [
        *HI,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    client.messages.create(model="scripted", max_tokens=99, messages=conversation, tools=[WEATHER])

    prompt = prompt_of(engine)
    assert prompt.startswith('[{"type": "function", "function": {"name": "weather"')
    assert 'assistant:Let me see.{"id": ' in prompt
    assert '"arguments": {"city": "Bonn"}' in prompt
    assert prompt.endswith(";tool:rain;user:And?;")


def test_a_result_that_is_an_error_says_so(client: Anthropic, engine: ScriptedEngine) -> None:
    """A template has no other way to show it."""
    use = {"type": "tool_use", "id": "1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "no city", "is_error": True}
    conversation: Any = [
        *HI,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]

    client.messages.create(model="scripted", max_tokens=9, messages=conversation)

    assert prompt_of(engine).endswith(";tool:Error: no city;")


def test_a_tool_use_is_streamed_as_a_block(client: Anthropic, script: Script) -> None:
    """Its input comes in pieces that add up."""
    script.reply = CALL

    with client.messages.stream(
        model="scripted", max_tokens=200, messages=HI, tools=[WEATHER]
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()

    assert json.loads("".join(pieces)) == {"city": "Bonn"}
    assert final.stop_reason == "tool_use"
    (use,) = final.content
    assert use.type == "tool_use"
    assert use.input == {"city": "Bonn"}


@pytest.mark.parametrize(
    ("choice", "reply"),
    [
        ({"type": "any"}, '[{"name": "weather", "parameters": {"city": "Bonn"}}]'),
        ({"type": "tool", "name": "weather"}, '{"city": "Bonn"}'),
    ],
    ids=["any", "named"],
)
def test_a_use_can_be_insisted_on(
    client: Anthropic, engine: ScriptedEngine, script: Script, choice: Any, reply: str
) -> None:
    """By a grammar, as in a chat."""
    script.reply = reply

    answer = client.messages.create(
        model="scripted", max_tokens=99, messages=HI, tools=[WEATHER], tool_choice=choice
    )

    assert engine.submitted[0].grammar is not None
    (use,) = answer.content
    assert use.type == "tool_use"
    assert use.input == {"city": "Bonn"}
    assert answer.stop_reason == "tool_use"


def test_a_schema_is_followed_and_parsed(
    client: Anthropic, engine: ScriptedEngine, script: Script
) -> None:
    """The client's `parse` sends `output_config` and reads the answer with its type."""
    script.reply = '{"name": "Bonn"}'

    answer = client.messages.parse(model="scripted", max_tokens=99, messages=HI, output_format=City)

    assert answer.parsed_output == City(name="Bonn")
    grammar = engine.submitted[0].grammar
    assert grammar is not None
    assert "name" in json.loads(grammar.text)["properties"]


def test_thinking_is_a_variable_of_the_template(client: Anthropic, engine: ScriptedEngine) -> None:
    """As Qwen's templates have it."""
    client.messages.create(
        model="scripted", max_tokens=9, messages=HI, thinking={"type": "disabled"}
    )

    assert prompt_of(engine) == "thinking=False;user:Hi;"


def test_tokens_are_counted_as_the_model_will_see_them(
    client: Anthropic, engine: ScriptedEngine
) -> None:
    """Nothing is generated for it."""
    counted = client.messages.count_tokens(model="scripted", system="Be kind.", messages=HI)

    assert counted.input_tokens == len("system:Be kind.;user:Hi;")
    assert engine.submitted == []


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [*HI, {"role": "assistant", "content": "I"}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"extra_body": {"n": 2}}, "`n`"),
        ({"extra_body": {"mcp_servers": [{}]}}, "`mcp_servers`"),
        ({"output_config": {"effort": "high"}}, "reasoning_effort"),
    ],
    ids=str,
)
def test_what_is_not_served_is_refused_by_name(
    client: Anthropic, asked: dict[str, Any], names: str
) -> None:
    """In Anthropic's shape, which has the message alone."""
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{"model": "scripted", "max_tokens": 9, "messages": HI, **asked})

    assert isinstance(caught.value.body, dict)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert names in caught.value.body["error"]["message"]
    assert caught.value.request_id == caught.value.body["request_id"]


def test_an_unknown_model_is_not_found(client: Anthropic) -> None:
    """With the client's own exception."""
    with pytest.raises(anthropic.NotFoundError, match="does not exist"):
        client.messages.create(model="other", max_tokens=9, messages=HI)


def test_a_wrong_method_is_answered_in_the_same_shape(sidecar_of_module: Sidecar) -> None:
    """Whatever goes wrong on these paths."""
    answer = sidecar_of_module.public.get("/v1/messages")

    assert (answer.status_code, answer.json()["type"]) == (405, "error")


def test_the_clients_own_header_holds_the_key(
    engine: ScriptedEngine, start: Callable[..., Sidecar], tmp_path: Path
) -> None:
    """`x-api-key`; a wrong one is its authentication error."""
    del engine
    (tmp_path / "keys").write_text("one\n")
    sidecar = start(api_keys_file=tmp_path / "keys")
    wait_until(sidecar.ready)
    asked: Any = {"model": "scripted", "max_tokens": 9, "messages": HI}

    with Anthropic(base_url=sidecar.url, api_key="one", max_retries=0) as known:
        assert known.messages.create(**asked).stop_reason == "end_turn"
    with (
        Anthropic(base_url=sidecar.url, api_key="two", max_retries=0) as unknown,
        pytest.raises(anthropic.AuthenticationError),
    ):
        unknown.messages.create(**asked)


def test_without_an_engine_the_client_hears_that_it_may_try_again(
    start: Callable[..., Sidecar],
) -> None:
    """503 in Anthropic's words."""
    sidecar = start()
    wait_until(sidecar.live)

    with (
        Anthropic(base_url=sidecar.url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError) as caught,
    ):
        client.messages.create(model="scripted", max_tokens=9, messages=HI)

    assert caught.value.status_code == 503
    assert "retry-after" in caught.value.response.headers
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == "overloaded_error"


def test_a_stream_that_breaks_ends_with_an_error_event(
    client: Anthropic, engine: ScriptedEngine, script: Script
) -> None:
    """The client raises it."""
    script.hold_after = 2
    stream = client.messages.create(model="scripted", max_tokens=9, messages=HI, stream=True)
    for _ in range(3):
        next(stream)

    engine.stop()

    with pytest.raises(anthropic.APIStatusError, match="engine"):
        list(stream)
