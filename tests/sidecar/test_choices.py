"""Several choices of one prompt: computed once, counted once, ended together."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until
from paceline_testing.whole_service import whole_service

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def script() -> Script:
    return Script(reply="abc", cached_tokens=1)


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_is_answered(sidecar: Sidecar, stream: bool) -> None:
    """Prompts keep their order, and a prompt's choices lie beside each other."""
    asked = {"model": "scripted", "prompt": ["x", "yz"], "n": 3, "best_of": 3}

    if stream:
        texts = [""] * 6
        for chunk in sidecar.openai.completions.create(**asked, stream=True):  # type: ignore[call-overload] # a dict
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    else:
        done = sidecar.openai.completions.create(**asked)  # type: ignore[call-overload] # as above
        texts = [choice.text for choice in done.choices]
        assert [choice.index for choice in done.choices] == list(range(6))

    assert texts == ["abc"] * 6


def test_usage_counts_a_prompt_once_and_every_output(sidecar: Sidecar) -> None:
    """As OpenAI bills it."""
    done = sidecar.openai.chat.completions.create(
        model="scripted",
        messages=CHAT,  # type: ignore[arg-type] # a literal
        n=4,
    )

    alone = sidecar.openai.chat.completions.create(
        model="scripted",
        messages=CHAT,  # type: ignore[arg-type] # as above
    )
    assert done.usage is not None
    assert alone.usage is not None
    assert done.usage.prompt_tokens == alone.usage.prompt_tokens
    assert done.usage.completion_tokens == 4 * alone.usage.completion_tokens
    assert done.usage.prompt_tokens_details == alone.usage.prompt_tokens_details


def test_the_others_follow_when_the_first_has_its_prompt_in_the_cache(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """Submitted together, each would compute the prompt for itself."""
    script.hold_after = 0
    body = {"model": "scripted", "prompt": "x", "n": 3}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(sidecar.public.post, "/v1/completions", json=body)
        wait_until(lambda: engine.running > 0)
        assert len(engine.submitted) == 1
        script.hold_after = None
        answer = asked.result(timeout=30)

    assert len(answer.json()["choices"]) == len(engine.submitted) == 3


def test_seeded_choices_differ_and_are_the_same_again(
    sidecar: Sidecar, engine: ScriptedEngine
) -> None:
    """Each has the seed and its own index."""
    for _ in range(2):
        sidecar.openai.completions.create(model="scripted", prompt="x", n=3, seed=2**63 - 2)

    seeds = [submit.sampling.seed for submit in engine.submitted]
    assert seeds[:3] == seeds[3:] == [2**63 - 2, 2**63 - 1, -(2**63)]


def test_a_client_that_leaves_aborts_every_choice(
    sidecar: Sidecar, engine: ScriptedEngine, script: Script
) -> None:
    """And nothing of it stays in the engine."""
    script.reply = "a" * 400
    script.hold_after = 5
    body = {"model": "scripted", "prompt": "x", "n": 3, "stream": True, "max_tokens": 400}
    with sidecar.public.stream("POST", "/v1/completions", json=body):
        wait_until(lambda: engine.running == 3)

    wait_until(lambda: engine.running == 0)
    assert sorted(engine.aborted) == sorted(submit.id for submit in engine.submitted)


def test_n_is_a_metric(sidecar: Sidecar) -> None:
    """Once for each prompt, not for each choice."""
    sidecar.openai.completions.create(model="scripted", prompt=["x", "y"], n=3)

    page = sidecar.public.get("/metrics").text
    counted = [line for line in page.splitlines() if line.startswith("vllm:request_params_n_")]
    values = {line.split("{")[0]: float(line.split()[-1]) for line in counted}
    assert values["vllm:request_params_n_sum"] == 6
    assert values["vllm:request_params_n_count"] == 2


def test_a_real_engine_computes_the_prompt_once(tmp_path: Path) -> None:
    """Every other choice finds all blocks of it but the last."""
    prompt = [5 + 7 * i % 250 for i in range(41)]
    with whole_service(tmp_path / "tiny") as (sidecar, _):
        done = sidecar.openai.completions.create(
            model="tiny", prompt=prompt, n=4, max_tokens=8, temperature=1.0, seed=1
        )

        def hits() -> float:
            lines = sidecar.public.get("/metrics").text.splitlines()
            found = [line for line in lines if line.startswith("vllm:prefix_cache_hits_total")]
            return float(found[0].split()[-1]) if found else 0.0

        wait_until(lambda: hits() == 3 * 40)

    assert len({choice.text for choice in done.choices}) > 1
    assert done.usage is not None
    assert done.usage.prompt_tokens == 41


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"prompt": ["x"] * 9}, "prompt"),
        ("/v1/completions", {"prompt": "x", "n": 9}, "n"),
        ("/v1/chat/completions", {"messages": CHAT, "n": 9}, "n"),
        ("/v1/embeddings", {"input": ["x"] * 9}, "input"),
        ("/v1/score", {"text_1": "x", "text_2": ["y"] * 9}, "text_2"),
    ],
    ids=["prompts", "choices", "chat", "embeddings", "scores"],
)
def test_a_request_has_no_more_items_than_the_service_allows(
    sidecar: Sidecar, engine: ScriptedEngine, path: str, fields: dict[str, object], param: str
) -> None:
    """Refused with the field's name, and before anything is tokenized; changed while it serves."""
    patch = {"epoch": 2, "admission": {"max_items_per_request": 8}}
    assert sidecar.admin.patch("/runtime/limits", json=patch).status_code == 200

    answer = sidecar.public.post(path, json={"model": "scripted", **fields})

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, "too_many_items")
    assert not engine.submitted


def test_a_request_of_a_thousand_items_is_served(sidecar: Sidecar, engine: ScriptedEngine) -> None:
    """More than the queue has places, which they pass on; LangChain embeds as many at a time."""
    answer = sidecar.public.post(
        "/v1/embeddings", json={"model": "scripted", "input": ["x"] * 1000}
    )

    assert len(answer.json()["data"]) == len(engine.submitted) == 1000
