"""A whole engine around a tiny model of random weights, and what transformers makes of the same."""

from pathlib import Path
from typing import Any

import torch

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Output, Sampling, Submit
from paceline_wire.limits import Limits


class TinyEngine:
    """Loaded once; `run` gives it requests on a fresh scheduler and prefix cache."""

    def __init__(self, folder: Path, *, num_blocks: int = 256, block_size: int = 4) -> None:
        self.reference = make_tiny_model(folder, "llama")
        settings = Settings(
            model_uri=f"file://{folder}",
            device="cpu",
            dtype="float32",
            threads=1,
            block_size=block_size,
            max_batch_size=16,
            kv_cache_bytes=num_blocks * block_size * 4096,
        )
        self.loaded: LoadedModel = load_model(settings, lambda _stage, _fraction: None)

    def engine(self, *, token_budget: int = 512, max_batch_size: int = 16) -> Engine:
        """An engine with nothing in it."""
        limits = Limits(max_batch_size=max_batch_size, token_budget=token_budget)
        loaded = self.loaded
        return Engine(
            loaded.runner,
            loaded.info,
            loaded.capacity,
            NoPacer(),
            limits=limits,
            clock=ManualClock(),
        )

    def run(
        self, prompts: dict[str, list[int]], sampling: Sampling, *, token_budget: int = 512
    ) -> dict[str, list[Output]]:
        """Every output of each request, all submitted at once."""
        engine = self.engine(token_budget=token_budget)
        for name, prompt_ids in prompts.items():
            engine.submit(Submit(name, prompt_ids, sampling))
        return run_to_end(engine)

    def logprobs(self, token_ids: list[int]) -> torch.Tensor:  # [tokens, vocab]
        """What transformers says after each token, in float64 from its logits on."""
        with torch.inference_mode():
            logits: Any = self.reference(torch.tensor([token_ids])).logits[0]
        result: torch.Tensor = logits.double().log_softmax(-1)
        return result


def run_to_end(engine: Engine) -> dict[str, list[Output]]:
    """Step until the engine is idle; the outputs of each request."""
    outputs: dict[str, list[Output]] = {}
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None, output.error
            outputs.setdefault(output.id, []).append(output)
    return outputs


def serve(
    loaded: LoadedModel, options: EngineOptions, lengths: dict[str, int]
) -> dict[str, list[int]]:
    """Serve a prompt of each length to its end, five tokens each."""
    limits = Limits(max_batch_size=8, token_budget=32)
    engine = Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=limits,
        clock=ManualClock(),
        options=options,
    )
    sampling = Sampling(max_tokens=5, temperature=0.0, ignore_eos=True)
    for name, length in lengths.items():
        engine.submit(Submit(name, list(range(3, 3 + length)), sampling))
    outputs = run_to_end(engine)
    return {name: [id_ for one in each for id_ in one.token_ids] for name, each in outputs.items()}
