"""The embedded model, loaded once for all tests that compute with it."""

import json
from pathlib import Path

import pytest

from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.settings import Settings
from paceline_testing.embedded_model import Divergences, next_logprobs

PROMPTS: list[str] = json.loads((Path(__file__).parent / "data/parity_prompts.json").read_text())


@pytest.fixture(scope="session")
def embedded_model() -> LoadedModel:
    """In float32, as its references compute, on one thread."""
    return load_model(
        Settings(device="cpu", dtype="float32", threads=1), lambda _stage, _fraction: None
    )


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    """From five tokens to some hundred and fifty."""
    return PROMPTS


@pytest.fixture(scope="session")
def divergences(embedded_model: LoadedModel, prompts: list[str]) -> Divergences:
    """How far another form of the embedded model is from it after each prompt: KL, in nats."""
    some = prompts[:16]
    exact = [next_logprobs(embedded_model, prompt) for prompt in some]

    def measured(other: LoadedModel) -> list[float]:
        near = [next_logprobs(other, prompt) for prompt in some]
        return [float((p.exp() * (p - q)).sum()) for p, q in zip(exact, near, strict=True)]

    return measured
