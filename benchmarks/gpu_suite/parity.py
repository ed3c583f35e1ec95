"""Tiny models of every family: our engine on the GPU beside transformers, token for token."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.parts import tried
from gpu_suite.record import Figure, Found
from gpu_suite.requests import Asked, answers, engine_of, prompt, submit
from paceline_engine.loading.load import load_model
from paceline_engine.settings import Settings
from paceline_testing.tiny_model import SIZES, Family, make_tiny_model

_GEMMA: dict[str, Any] = {"sliding_window": 9, "head_dim": 16, "query_pre_attn_scalar": 24}
MODELS: dict[Family, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 9},
    "qwen2": {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA | {"sliding_window_pattern": 3},
}
_NEW_TOKENS = 12
_LEAST_LEAD = 1e-3
"""Where the best token leads by less, rounding decides: what follows is compared no more."""


def measure(machine: Machine) -> Iterator[Found]:
    """Count the tokens that differ, in each family and in all."""
    families = list(MODELS)[:2] if machine.is_dry else list(MODELS)
    all_found: list[Found] = []
    for family in families:
        for found in tried(names.parity(family), partial(_family, machine, family), machine):
            all_found.append(found)
            yield found
    figures = [one for one in all_found if isinstance(one, Figure)]
    if len(figures) == len(families):
        note = f"in {len(families)} families, float32"
        yield Figure(names.PARITY, sum(one.value for one in figures), "tokens", note)


def _family(machine: Machine, family: Family) -> Iterator[Found]:
    with TemporaryDirectory() as folder:
        # Wide sums in float32 on both sides; TF32 is off by default.
        reference = make_tiny_model(Path(folder), family, seed=1, **MODELS[family])
        reference = reference.to(machine.device)
        asked = _asked()
        ours = _ours(Path(folder), machine, asked)
    wanted = [_theirs(reference, one.prompt) for one in asked]
    differing = sum(
        a != b
        for seen, want in zip(ours, wanted, strict=True)
        for a, b in zip(seen, want)  # noqa: B905 - as far as theirs is clear
    )
    yield Figure(names.parity(family), differing, "tokens", f"of {sum(map(len, wanted))}")


def _asked() -> list[Asked]:
    source = random.Random(5)
    vocab_size = SIZES["vocab_size"]
    return [Asked(prompt(source, n, vocab_size), _NEW_TOKENS) for n in (3, 40, 17, 61, 25, 8)]


def _theirs(model: Any, tokens: list[int]) -> list[int]:
    """Greedy, by the whole sequence each time, as far as every choice is clear."""
    known = list(tokens)
    with torch.inference_mode():
        for _ in range(_NEW_TOKENS):
            logits = model(torch.tensor([known], device=model.device)).logits[0, -1]
            best = logits.topk(2)
            if best.values[0] - best.values[1] < _LEAST_LEAD:
                break
            known.append(int(best.indices[0]))
    return known[len(tokens) :]


def _ours(folder: Path, machine: Machine, asked: list[Asked]) -> list[list[int]]:
    settings = Settings(
        model_uri=f"file://{folder}",
        device="cpu" if machine.is_dry else "cuda",
        dtype="float32",
        threads=1,
        kv_cache_bytes=1 << 22,
    )
    engine = engine_of(load_model(settings, lambda *_: None))
    for number, one in enumerate(asked):
        submit(engine, number, one, temperature=0.0)
    given = answers(engine)
    return [given[str(number)] for number in range(len(asked))]
