"""Log-probabilities as the official client reads them, whole and streamed, of prompts too."""

import pytest

from paceline_testing.byte_tokenizer import byte_tokenizer
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine

REPLY = "Aé"  # three bytes, so three tokens; the scripted engine finds each the second likeliest
ASKED = {"model": "scripted", "prompt": "Hi", "max_tokens": 9}


@pytest.fixture
def script() -> Script:
    return Script(reply=REPLY)


def before(token: str) -> str:
    """The token one before it in the scripted engine's vocabulary."""
    tokenizer = byte_tokenizer()
    return tokenizer.decode([tokenizer.encode(token).ids[0] - 1])


def test_a_completion_tells_of_each_token(sidecar: Sidecar) -> None:
    """Tokens, their places in the text, and the likeliest with the chosen one."""
    done = sidecar.openai.completions.create(
        model="scripted", prompt="Hi", max_tokens=9, logprobs=1
    )

    told = done.choices[0].logprobs
    assert told is not None
    assert told.tokens == ["A", "\ufffd", "\ufffd", "<|end|>"]
    assert told.token_logprobs == [-0.75] * 4
    assert told.text_offset == [0, 1, 2, 3]
    assert told.top_logprobs is not None
    assert told.top_logprobs[0] == {before("A"): -0.5, "A": -0.75}


def test_zero_alternatives_tell_of_the_chosen_token_alone(sidecar: Sidecar) -> None:
    """0 asks, null does not."""
    done = sidecar.openai.completions.create(model="scripted", prompt="Hi", logprobs=0)
    silent = sidecar.openai.completions.create(model="scripted", prompt="Hi")

    assert done.choices[0].logprobs is not None
    assert done.choices[0].logprobs.top_logprobs is not None
    assert done.choices[0].logprobs.top_logprobs[0] == {"A": -0.75}
    assert silent.choices[0].logprobs is None


def test_a_streamed_completion_tells_the_same(sidecar: Sidecar) -> None:
    """A chunk comes for a token that completes no character, too."""
    stream = sidecar.openai.completions.create(
        model="scripted", prompt="Hi", max_tokens=9, logprobs=1, stream=True
    )

    told = [choice.logprobs for chunk in stream for choice in chunk.choices]
    assert [token for each in told if each for token in each.tokens or []] == [
        *("A", "\ufffd", "\ufffd", "<|end|>")
    ]
    assert [at for each in told if each for at in each.text_offset or []] == [0, 1, 2, 3]


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_tells_of_each_token_with_its_bytes(sidecar: Sidecar, stream: bool) -> None:
    """The bytes of all tokens are the text's, where a token is half a character."""
    asked = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "Hi"}],
        "logprobs": True,
        "top_logprobs": 2,
    }

    if stream:
        chunks = sidecar.openai.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload] # a dict
        choices = [choice for chunk in chunks for choice in chunk.choices]
    else:
        done = sidecar.openai.chat.completions.create(**asked)  # type: ignore[call-overload] # as above
        choices = done.choices

    content = [
        each for choice in choices if choice.logprobs for each in choice.logprobs.content or []
    ]
    assert [each.token for each in content] == ["A", "\ufffd", "\ufffd", "<|end|>"]
    assert b"".join(bytes(each.bytes or ()) for each in content[:3]).decode() == REPLY
    assert content[0].logprob == -0.75
    assert [each.logprob for each in content[0].top_logprobs] == [-0.5, -0.75]
    assert content[0].top_logprobs[0].token == before("A")


def test_an_echo_comes_before_the_output_with_its_own_log_probabilities(sidecar: Sidecar) -> None:
    """Nothing comes before the first token of a prompt: it has none."""
    done = sidecar.openai.completions.create(
        model="scripted", prompt="Hi", max_tokens=1, echo=True, logprobs=1
    )

    choice = done.choices[0]
    assert choice.text == "HiA"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["H", "i", "A"]
    assert choice.logprobs.token_logprobs == [None, -0.75, -0.75]
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.text_offset == [0, 1, 2]


def test_an_echo_without_output_scores_a_text(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """`max_tokens` 0: what evaluation suites ask, of text and of tokens."""
    for prompt in ("Hi", byte_tokenizer().encode("Hi").ids):
        done = sidecar.openai.completions.create(
            model="scripted", prompt=prompt, max_tokens=0, echo=True, logprobs=1
        )
        assert done.choices[0].text == "Hi"
        assert done.choices[0].logprobs is not None
        assert done.choices[0].logprobs.token_logprobs == [None, -0.75]
        assert done.usage is not None
        assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (2, 0)
    assert [submit.sampling.max_tokens for submit in engine.submitted] == [1, 1]


def test_a_streamed_echo_opens_with_the_prompt(sidecar: Sidecar) -> None:
    """In the chunk of the first token."""
    stream = sidecar.openai.completions.create(
        model="scripted", prompt="Hi", echo=True, logprobs=0, stream=True
    )

    chunks = [choice for chunk in stream for choice in chunk.choices]
    assert "".join(chunk.text for chunk in chunks) == f"Hi{REPLY}"
    assert chunks[0].logprobs is not None
    assert chunks[0].logprobs.tokens == ["H", "i", "A"]


def test_prompt_logprobs_have_the_shape_that_vllm_gave_them(sidecar: Sidecar) -> None:
    """By token id, with rank and text; null for the first token."""
    body = {**ASKED, "prompt_logprobs": 1}
    text = sidecar.public.post("/v1/completions", json=body).json()
    body = {"model": "scripted", "messages": [{"role": "user", "content": "Hi"}]}
    chat = sidecar.public.post("/v1/chat/completions", json={**body, "prompt_logprobs": 0}).json()

    token_id = byte_tokenizer().encode("i").ids[0]
    assert text["choices"][0]["prompt_logprobs"] == [
        None,
        {
            str(token_id): {"logprob": -0.75, "rank": 2, "decoded_token": "i"},
            str(token_id - 1): {"logprob": -0.5, "rank": 1, "decoded_token": before("i")},
        },
    ]
    assert text["choices"][0]["logprobs"] is None
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_what_shapes_the_scores_reaches_the_engine(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Each in the engine's own words."""
    sidecar.openai.completions.create(
        model="scripted",
        prompt="Hi",
        presence_penalty=0.5,
        frequency_penalty=-0.25,
        logit_bias={"65": -100, "66": 2.5},  # type: ignore[dict-item] # the API takes fractions
        extra_body={"repetition_penalty": 1.2, "min_p": 0.05},
    )

    sampling = engine.submitted[0].sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.25)
    assert (sampling.repetition_penalty, sampling.min_p) == (1.2, 0.05)
    assert sampling.logit_bias == {65: -100.0, 66: 2.5}
