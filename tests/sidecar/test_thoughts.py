"""Models that think: what they thought is told apart from what they answer."""

from typing import Any

import pytest
from anthropic import Anthropic
from openai.types.responses import ResponseReasoningItem

from paceline_sidecar.text.thoughts import ThoughtSplitter
from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine

# As Qwen's and DeepSeek's do: it shows the past's thoughts, and may open or close one.
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}:"
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}"
    "{{ message.content }};{% endfor %}"
    "{% if enable_thinking is defined %}<think>\n{% if not enable_thinking %}\n</think>\n\n"
    "{% endif %}{% endif %}{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
)
THOUGHT, ANSWER = "Hm, 2 < 3.", "Grüße!"
REPLY = f"<think>\n{THOUGHT}</think>\n\n{ANSWER}"
HI: Any = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def script() -> Script:
    return Script(reply=REPLY, chat_template=TEMPLATE)


def pieces_of(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("text", "is_open", "thought", "answer"),
    [
        (REPLY, False, THOUGHT, ANSWER),
        (f"\n{THOUGHT}</think>{ANSWER}", True, THOUGHT, ANSWER),
        (ANSWER, False, "", ANSWER),
        ("  two <think>", False, "", "  two <think>"),
        ("<thi", False, "", "<thi"),
        (f"<think>{THOUGHT}</thi", False, f"{THOUGHT}</thi", ""),
        (f"<think></think>{ANSWER}", False, "", ANSWER),
        (f"{THOUGHT}</think>a</think>b", True, THOUGHT, "a</think>b"),
        ("", False, "", ""),
    ],
)
def test_a_text_is_split_however_it_is_cut(
    size: int, text: str, is_open: bool, thought: str, answer: str
) -> None:
    """Tags lie across pieces; what only looks like one is text."""
    splitter = ThoughtSplitter(is_open=is_open)

    found = [splitter.push(piece, ended=False) for piece in pieces_of(text, size)]
    found.append(splitter.push("", ended=True))

    assert "".join(each[0] for each in found) == thought
    assert "".join(each[1] for each in found) == answer


def test_a_thought_is_passed_on_at_once() -> None:
    """But for what may be the beginning of its end."""
    splitter = ThoughtSplitter(is_open=True)

    assert splitter.push("abc", ended=False) == ("abc", "")
    assert splitter.push("d</t", ended=False) == ("d", "")
    assert splitter.push("x", ended=False) == ("</tx", "")


def test_a_chat_tells_the_thought_under_both_names(sidecar: Sidecar) -> None:
    """`reasoning` is vLLM's today, `reasoning_content` was, and is DeepSeek's."""
    done = sidecar.openai.chat.completions.create(model="scripted", messages=HI)

    message = done.choices[0].message.to_dict()
    assert message["content"] == ANSWER
    assert message["reasoning"] == message["reasoning_content"] == THOUGHT


def test_a_streamed_chat_thinks_piece_by_piece(sidecar: Sidecar) -> None:
    """First thoughts, then the answer."""
    chunks = list(
        sidecar.openai.chat.completions.create(model="scripted", messages=HI, stream=True)
    )

    deltas = [chunk.choices[0].delta.to_dict() for chunk in chunks if chunk.choices]
    thoughts = [str(delta["reasoning"]) for delta in deltas if "reasoning" in delta]
    assert len(thoughts) > 3
    assert "".join(thoughts) == THOUGHT
    assert "".join(str(delta.get("content") or "") for delta in deltas) == ANSWER
    assert all(delta.get("reasoning_content") == delta.get("reasoning") for delta in deltas)


@pytest.mark.parametrize(
    ("enable", "reply", "thought"),
    [(True, f"{THOUGHT}</think>\n\n{ANSWER}", THOUGHT), (False, ANSWER, None)],
    ids=["opened", "closed"],
)
def test_the_prompt_may_open_or_close_the_thought(
    sidecar: Sidecar, script: Script, enable: bool, reply: str, thought: str | None
) -> None:
    """The output goes on where the template ends."""
    script.reply = reply

    done = sidecar.openai.chat.completions.create(
        model="scripted",
        messages=HI,
        extra_body={"chat_template_kwargs": {"enable_thinking": enable}},
    )

    message = done.choices[0].message.to_dict()
    assert (message["content"], message.get("reasoning")) == (ANSWER, thought)


def test_what_follows_a_grammar_is_no_thought(sidecar: Sidecar, script: Script) -> None:
    """Even where the template opens one: the grammar holds from the first token on."""
    script.reply = '{"a": 1}'

    done = sidecar.openai.chat.completions.create(
        model="scripted",
        messages=HI,
        response_format={"type": "json_object"},
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
    )

    assert done.choices[0].message.content == '{"a": 1}'


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_thought_that_is_sent_back_reaches_the_template(
    sidecar: Sidecar, engine: ScriptedEngine, name: str
) -> None:
    """It knows when to show it."""
    conversation: Any = [*HI, {"role": "assistant", "content": "A", name: "T"}, *HI]

    sidecar.openai.chat.completions.create(model="scripted", messages=conversation)

    prompt = byte_tokenizer().decode(engine.submitted[0].prompt_ids)
    assert prompt == "user:Hi;assistant:<think>T</think>A;user:Hi;"


def test_a_thought_comes_before_a_call(sidecar: Sidecar, script: Script) -> None:
    """And is no content."""
    script.reply = (
        f'<think>{THOUGHT}</think>\n<tool_call>{{"name": "f", "arguments": {{}}}}</tool_call>'
    )
    tool: Any = {"type": "function", "function": {"name": "f"}}

    done = sidecar.openai.chat.completions.create(model="scripted", messages=HI, tools=[tool])

    choice = done.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.to_dict()["reasoning"] == THOUGHT


def test_a_response_has_an_item_for_it(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Its tokens are counted, and it may be sent back."""
    answer = sidecar.openai.responses.create(model="scripted", input="Hi")

    thought, _ = answer.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content is not None
    assert thought.content[0].text == THOUGHT
    assert answer.output_text == ANSWER
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == len(THOUGHT)
    again: Any = [*HI, *[item.to_dict() for item in answer.output], *HI]
    sidecar.openai.responses.create(model="scripted", input=again)
    prompt = byte_tokenizer().decode(engine.submitted[1].prompt_ids)
    assert prompt == f"user:Hi;assistant:<think>{THOUGHT}</think>{ANSWER};user:Hi;"


def test_a_streamed_response_has_its_events(sidecar: Sidecar) -> None:
    """An item that is complete before the message begins."""
    with sidecar.openai.responses.stream(model="scripted", input="Hi") as stream:
        events = list(stream)
        final = stream.get_final_response()

    kinds = [event.type for event in events]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == THOUGHT
    assert [item.type for item in final.output] == ["reasoning", "message"]


def test_a_message_has_a_block_for_it(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Whole, streamed, and sent back."""
    with Anthropic(base_url=sidecar.url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(model="scripted", max_tokens=99, messages=HI)
        with client.messages.stream(model="scripted", max_tokens=99, messages=HI) as stream:
            thoughts = [event.thinking for event in stream if event.type == "thinking"]
            final = stream.get_final_message()
        again: Any = [*HI, {"role": "assistant", "content": whole.content}, *HI]
        client.messages.create(model="scripted", max_tokens=99, messages=again)

    thought, text = whole.content
    assert thought.type == "thinking"
    assert (thought.thinking, text.to_dict()["text"]) == (THOUGHT, ANSWER)
    assert "".join(thoughts) == THOUGHT
    assert [block.type for block in final.content] == ["thinking", "text"]
    prompt = byte_tokenizer().decode(engine.submitted[-1].prompt_ids)
    assert prompt == f"user:Hi;assistant:<think>{THOUGHT}</think>{ANSWER};user:Hi;"
