"""The official `openai` client, against real servers and a real socket to a scripted engine."""

import openai
import pytest
from openai import AsyncOpenAI

from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

REPLY = "Grüße, 世界! 🙂"


@pytest.fixture
def script() -> Script:
    return Script(reply=REPLY, cached_tokens=4)


def test_a_completion_gives_text_finish_reason_and_usage(sidecar: Sidecar) -> None:
    """The plainest call."""
    done = sidecar.openai.completions.create(model="scripted", prompt="Hi", max_tokens=100)

    size = len(REPLY.encode()) + 1  # every byte is a token, and so is the end
    assert done.choices[0].text == REPLY
    assert done.choices[0].finish_reason == "stop"
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (2, size)
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.prompt_tokens_details.cached_tokens == 4


def test_a_completion_without_max_tokens_ends_after_sixteen(sidecar: Sidecar) -> None:
    """The API's own default for plain completions."""
    done = sidecar.openai.completions.create(model="scripted", prompt="Hi")

    assert done.choices[0].finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 16


def test_several_prompts_give_a_choice_each(sidecar: Sidecar) -> None:
    """Choices keep the order of the prompts."""
    done = sidecar.openai.completions.create(model="scripted", prompt=["a", "bc"], max_tokens=99)

    assert [choice.index for choice in done.choices] == [0, 1]
    assert [choice.text for choice in done.choices] == [REPLY, REPLY]
    assert done.usage is not None
    assert done.usage.prompt_tokens == 3


def test_token_ids_reach_the_engine_as_they_are(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """A prompt of ids is not tokenized again."""
    sidecar.openai.completions.create(model="scripted", prompt=[5, 6, 7])

    assert engine.submitted[0].prompt_ids == [5, 6, 7]


def test_a_streamed_completion_adds_up_to_the_same_text(sidecar: Sidecar) -> None:
    """No chunk holds half a character, the last one carries the usage."""
    chunks = list(
        sidecar.openai.completions.create(
            model="scripted",
            prompt="Hi",
            max_tokens=100,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == REPLY
    assert not any("\ufffd" in text for text in texts)
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(REPLY.encode()) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_chat_goes_through_the_models_template(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """Text parts are joined, `developer` is a system message to the template."""
    done = sidecar.openai.chat.completions.create(
        model="scripted",
        messages=[
            {"role": "developer", "content": "Be kind."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
            },
        ],
    )

    prompt = byte_tokenizer().decode(engine.submitted[0].prompt_ids, skip_special_tokens=False)
    assert prompt == (
        "<|start|>system: Be kind.<|end|><|start|>user: Hello<|end|><|start|>assistant: "
    )
    assert done.choices[0].message.role == "assistant"
    assert done.choices[0].message.content == REPLY


def test_a_streamed_chat_opens_with_the_role(sidecar: Sidecar) -> None:
    """As the API does."""
    chunks = list(
        sidecar.openai.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == REPLY
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens > 0


async def test_the_async_client_works_as_well(sidecar: Sidecar) -> None:
    """Streaming and not, side by side."""
    async with AsyncOpenAI(base_url=f"{sidecar.url}/v1", api_key="none", timeout=30) as client:
        whole = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "Hi"}]
        )
        stream = await client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert whole.choices[0].message.content == REPLY
    assert "".join(pieces) == REPLY


def test_what_the_client_asks_for_reaches_the_engine(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Sampling, lane and deadline, each in the engine's own words."""
    sidecar.openai.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "Hi"}],
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        user="somebody",
        extra_body={"top_k": 5, "ignore_eos": True, "min_tokens": 2, "stop_token_ids": [9]},
        extra_headers={"x-paceline-lane": "batch", "x-request-timeout-ms": "30000"},
    )

    submit = engine.submitted[0]
    sampling = submit.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
    assert (sampling.top_k, sampling.seed, sampling.min_tokens) == (5, 3, 2)
    assert sampling.ignore_eos
    assert sampling.stop_token_ids == (9,)
    assert submit.lane == "batch"
    assert submit.deadline_at is not None
    assert submit.deadline_at - submit.arrived_at == pytest.approx(30)


def test_a_stop_string_ends_the_text_before_it_and_aborts(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """It lies across tokens, is not shown, and the engine stops working for it."""
    script.reply = "one two three " * 20

    done = sidecar.openai.completions.create(
        model="scripted", prompt="Hi", max_tokens=400, stop=["three o", "zzz"]
    )

    assert done.choices[0].text == "one two "
    assert done.choices[0].finish_reason == "stop"
    wait_until(lambda: engine.aborted == [engine.submitted[0].id])


def test_models_lists_the_one_that_is_served(sidecar: Sidecar) -> None:
    """And a request for another one is 404."""
    client = sidecar.openai

    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-9", prompt="Hi")


def test_a_prompt_longer_than_the_context_is_named_as_such(sidecar: Sidecar) -> None:
    """Clients look for this code to shorten a conversation."""
    with pytest.raises(openai.BadRequestError) as caught:
        sidecar.openai.completions.create(model="scripted", prompt="x" * 512)

    assert caught.value.code == "context_length_exceeded"


def test_max_tokens_is_cut_to_what_the_context_leaves(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """The engine never meets a request that cannot fit."""
    sidecar.openai.completions.create(model="scripted", prompt="x" * 500, max_tokens=4000)

    assert engine.submitted[0].sampling.max_tokens == 12
