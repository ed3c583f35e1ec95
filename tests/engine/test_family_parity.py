"""Each family, served by the whole engine, says what transformers says, token for token."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline_engine.engine.engine import Engine
from paceline_engine.loading.load import load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

NEW_TOKENS = 12
# Longer than every window below, shorter than a block, and in between.
PROMPT_LENGTHS = (3, 40, 17, 61, 25, 8)
GEMMA: dict[str, Any] = {"sliding_window": 9, "head_dim": 16, "query_pre_attn_scalar": 24}
MODELS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": ("gemma3_text", GEMMA | {"sliding_window_pattern": 3}),
}


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randint(3, 300, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS
    ]


def _theirs(model: Any, prompt: list[int]) -> list[int]:
    """Greedy, by the whole sequence each time: no cache, and so no window of one."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            assert best.values[0] - best.values[1] > 1e-4, "a near tie: choose another seed"
            tokens.append(int(best.indices[0]))
    return tokens[len(prompt) :]


def _ours(folder: Path, *, batch_size: int, token_budget: int, block_size: int) -> list[list[int]]:
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 22,
        block_size=block_size,
    )
    loaded = load_model(settings, lambda _stage, _fraction: None)
    limits = Limits(max_batch_size=batch_size, token_budget=token_budget)
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=limits,
        clock=ManualClock(),
    )
    prompts = _prompts()
    sampling = Sampling(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
    for number, prompt in enumerate(prompts):
        engine.submit(Submit(str(number), prompt, sampling))
    answers: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None
            answers[output.id] += output.token_ids
    return list(answers.values())


@pytest.mark.parametrize("name", MODELS)
def test_every_family_is_served_as_transformers_runs_it(tmp_path: Path, name: str) -> None:
    """Alone, in one batch, and in chunks that neither a block nor the window divides."""
    family, config = MODELS[name]
    reference = make_tiny_model(tmp_path, family, seed=1, **config)
    expected = [_theirs(reference, prompt) for prompt in _prompts()]

    for cut in (
        {"batch_size": 1, "token_budget": 8192, "block_size": 16},
        {"batch_size": 8, "token_budget": 8192, "block_size": 4},
        {"batch_size": 4, "token_budget": 7, "block_size": 4},
        {"batch_size": 3, "token_budget": 5, "block_size": 16},
    ):
        assert _ours(tmp_path, **cut) == expected, cut
