"""EmbeddingsJob and scores from the official client to a real engine and back."""

import base64
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from tokenizers import Tokenizer

from paceline_testing.running_sidecar import Sidecar
from paceline_testing.whole_service import whole_service

TEXTS = ["The quick brown fox", "jumps", "Pack my box with five dozen"]


class Service:
    """The service, and transformers on the same model."""

    def __init__(self, sidecar: Sidecar, reference: Any, folder: Path) -> None:
        self.sidecar = sidecar
        self.reference = reference
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def mean_state(self, text: str) -> Any:
        ids = self.tokenizer.encode(text).ids
        with torch.inference_mode():
            states = self.reference.model(torch.tensor([ids])).last_hidden_state[0]
        pooled = states.double().mean(dim=0)
        return (pooled / pooled.norm()).numpy()

    def log_likelihood(self, first: str, second: str) -> tuple[float, int]:
        start = len(self.tokenizer.encode(first).ids)
        ids = self.tokenizer.encode(first + second).ids
        with torch.inference_mode():
            logprobs = self.reference(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        scored = range(start, len(ids))
        return sum(logprobs[at - 1, ids[at]].item() for at in scored), len(scored)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("tiny")
    with whole_service(folder, pooling="mean") as (sidecar, reference):
        yield Service(sidecar, reference, folder)


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_embeddings_are_the_models_own(service: Service, encoding: Any) -> None:
    """As numbers, as base64, and as the client asks when nobody tells it."""
    asked = {} if encoding is None else {"encoding_format": encoding}
    done = service.sidecar.openai.embeddings.create(model="tiny", input=TEXTS, **asked)

    assert [each.index for each in done.data] == [0, 1, 2]
    for each, text in zip(done.data, TEXTS, strict=True):
        numbers: Any = each.embedding
        if encoding == "base64":
            numbers = np.frombuffer(base64.b64decode(numbers), dtype="<f4")
        np.testing.assert_allclose(numbers, service.mean_state(text), atol=1e-5)
    tokens = sum(len(service.tokenizer.encode(text).ids) for text in TEXTS)
    assert (done.usage.prompt_tokens, done.usage.total_tokens) == (tokens, tokens)


def test_an_input_of_tokens_is_one_text(service: Service) -> None:
    """A list of ids, or several."""
    ids = service.tokenizer.encode(TEXTS[0]).ids

    one = service.sidecar.openai.embeddings.create(model="tiny", input=ids)
    two = service.sidecar.openai.embeddings.create(model="tiny", input=[ids, ids])

    assert len(one.data) == 1
    assert len(two.data) == 2
    np.testing.assert_allclose(one.data[0].embedding, service.mean_state(TEXTS[0]), atol=1e-5)


def test_scores_are_log_likelihoods_of_the_second_text(service: Service) -> None:
    """One text with many, and many with as many."""
    endings = [" brown fox", " lazy dog.", " box"]
    body = {"model": "tiny", "text_1": "The quick", "text_2": endings}
    one = service.sidecar.public.post("/v1/score", json=body).json()
    many = service.sidecar.public.post(
        "/v1/score", json={**body, "text_1": ["The quick", "Over the", "Pack my"]}
    ).json()

    for answer, firsts in ((one, ["The quick"] * 3), (many, ["The quick", "Over the", "Pack my"])):
        assert answer["object"] == "list"
        for each, first, second in zip(answer["data"], firsts, endings, strict=True):
            score, num_tokens = service.log_likelihood(first, second)
            assert each["score"] == pytest.approx(score, abs=2e-3)
            assert each["num_tokens"] == num_tokens
            assert each["object"] == "score"
            assert math.isfinite(each["score"])
    assert one["usage"]["completion_tokens"] == 0


def test_another_model_is_not_found(service: Service) -> None:
    """As for completions."""
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        service.sidecar.openai.embeddings.create(model="other", input="x")
