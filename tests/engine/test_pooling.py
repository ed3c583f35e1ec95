"""Embeddings are the states that transformers computes, pooled, however steps are cut."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from paceline_testing.tiny_engine import TinyEngine, run_to_end
from paceline_wire import Output, Sampling, Submit

PROMPTS = {"long": [5 + 7 * i % 250 for i in range(41)], "short": [9, 8, 7], "one": [11]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return TinyEngine(folder)


def expected(tiny: TinyEngine, prompt_ids: list[int], pooling: str) -> np.ndarray:
    with torch.inference_mode():
        states = tiny.reference.model(torch.tensor([prompt_ids])).last_hidden_state[0].double()
    pooled = states[-1] if pooling == "last" else states.mean(dim=0)
    unit: np.ndarray = (pooled / pooled.norm()).numpy()
    return unit


def embedding(outputs: list[Output]) -> np.ndarray:
    assert all(not output.embedding for output in outputs[1:])
    return np.frombuffer(outputs[0].embedding, dtype="<f4")


@pytest.mark.parametrize("token_budget", [512, 17, 3])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_those_of_transformers(
    tiny: TinyEngine, pooling: Literal["mean", "last"], token_budget: int
) -> None:
    """In one step, in chunks, and nearly token by token."""
    answers = tiny.run(PROMPTS, Sampling(max_tokens=1, pooling=pooling), token_budget=token_budget)

    for name, prompt_ids in PROMPTS.items():
        ours = embedding(answers[name])
        np.testing.assert_allclose(ours, expected(tiny, prompt_ids, pooling), atol=1e-5)
        assert np.linalg.norm(ours) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_shared_prefix_changes_nothing(
    tiny: TinyEngine, pooling: Literal["mean", "last"]
) -> None:
    """The last state may come after a prefix that was found; a mean needs them all."""
    engine = tiny.engine()
    engine.submit(Submit("first", PROMPTS["long"], Sampling(max_tokens=1)))
    run_to_end(engine)
    engine.submit(Submit("a", PROMPTS["long"], Sampling(max_tokens=1, pooling=pooling)))

    outputs = run_to_end(engine)["a"]

    assert (outputs[0].cached_tokens > 0) == (pooling == "last")
    np.testing.assert_allclose(
        embedding(outputs), expected(tiny, PROMPTS["long"], pooling), atol=1e-5
    )


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_preempted_prompt_is_pooled_once(
    tiny: TinyEngine, pooling: Literal["mean", "last"]
) -> None:
    """No state counts twice, whether it is computed again or found."""
    engine = tiny.engine(token_budget=10)
    sampling = Sampling(max_tokens=1, pooling=pooling)
    engine.submit(Submit("a", PROMPTS["long"], sampling))
    engine.step()
    engine.step()
    (request,) = engine.requests.running()

    engine.requests.preempt(request)
    outputs = run_to_end(engine)["a"]

    assert request.num_preemptions == 1
    np.testing.assert_allclose(
        embedding(outputs), expected(tiny, PROMPTS["long"], pooling), atol=1e-5
    )
