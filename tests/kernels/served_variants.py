"""Counts the variants of kernels that the start of an engine compiles, and those of its traffic.

A process of its own, for `test_served_variants.py`: there, triton was imported as an interpreter.
Prints both for each model, and for one in FP8 also without `launch_every_variant`.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported

import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.drafting.proposer import Proposer
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.capture import capture_graphs
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.profiling.every_variant import launch_every_variant
from paceline_engine.profiling.warm_up import warm_up
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Quantization, Settings
from paceline_kernels.compiled import Compilations
from paceline_kernels.fp8 import CODES
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.recorded_variants import launchers_beside_references
from paceline_testing.tiny_adapter import make_tiny_adapter
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import LoadAdapter, Sampling, Submit
from paceline_wire.limits import Limits

VOCAB = 300
LONGEST = 4096
MOST_TOKENS = 2500
"""Of prompts that are alike: references take their time."""
# Four query heads over one of KV: parts of the context depend on the number of rows.
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": LONGEST,
}


@dataclass(frozen=True)
class Model:
    """A model, as a service may ask for it."""

    family: Family
    config: dict[str, Any] = field(default_factory=dict)
    quantization: Quantization = "none"
    kv_dtype: torch.dtype | None = None
    max_loras: int = 0
    has_draft: bool = False
    has_graphs: bool = True
    fuses: bool = False
    """With norms, gates and sums within products of few rows, as `row_products="on"` has them."""
    max_batch_size: int = 300
    token_budget: int = 512


MODELS = {
    "bfloat16": Model("llama"),
    "small": Model("llama", max_batch_size=5, token_budget=20),
    "fp8": Model("llama", quantization="fp8", kv_dtype=CODES, has_graphs=False),
    "int8": Model("qwen3", quantization="int8", max_batch_size=40),
    "fp8_dynamic": Model("llama", quantization="fp8_dynamic", kv_dtype=CODES),
    "gemma": Model(
        "gemma2", {"sliding_window": 300, "query_pre_attn_scalar": 16}, max_batch_size=20
    ),
    "gemma 3": Model(
        "gemma3_text",
        {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"]},
        max_batch_size=20,
    ),
    "lora": Model("qwen2", quantization="fp8_dynamic", max_loras=2, max_batch_size=70),
    "draft": Model("llama", has_draft=True, max_batch_size=70, quantization="int8"),
    "row products": Model("llama", fuses=True),
    "row products, gemma 3": Model("gemma3_text", fuses=True, max_batch_size=20),
    "row products, lora": Model("qwen2", fuses=True, max_loras=2, max_batch_size=70),
}


class Anything:
    """A grammar that allows every second token."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:  # noqa: ARG002 - the port's
        """See `Constraint`."""
        bitmask.fill(0x55555555)


SAMPLINGS = st.builds(
    Sampling,
    max_tokens=st.integers(3, 6),
    temperature=st.sampled_from((0.0, 0.7)),
    top_k=st.sampled_from((0, 5)),
    min_tokens=st.sampled_from((0, 3)),
    presence_penalty=st.sampled_from((0.0, 0.5)),
    frequency_penalty=st.sampled_from((0.0, 0.5)),
    repetition_penalty=st.sampled_from((1.0, 1.2)),
    logit_bias=st.sampled_from(({}, {5: 1.0})),
    logprobs=st.sampled_from((None, 0, 1, 4)),
    prompt_logprobs=st.sampled_from((None, 2)),
    pooling=st.sampled_from((None, None, "last", "mean")),
    ignore_eos=st.booleans(),
)
PLAIN = st.builds(Sampling, max_tokens=st.integers(1, 12), temperature=st.just(0.0))
LENGTHS = st.one_of(st.integers(1, 40), st.sampled_from((100, 150, 500, 1100, 2100)))


@dataclass(frozen=True)
class Asked:
    """Requests that are alike."""

    count: int
    length: int
    sampling: Sampling
    adapter: str = ""
    has_grammar: bool = False


ASKED = st.builds(
    Asked,
    count=st.one_of(st.integers(1, 3), st.sampled_from((17, 35, 66))),
    length=LENGTHS,
    sampling=st.one_of(SAMPLINGS, PLAIN),
    adapter=st.sampled_from(("", "a", "b")),
    has_grammar=st.booleans(),
).filter(lambda asked: asked.count * asked.length <= MOST_TOKENS)


class Served:
    """One model: started, and given traffic."""

    def __init__(self, model: Model, folder: Path) -> None:
        made = make_tiny_model(folder / "model", model.family, **{**SIZES, **model.config})
        self.model = model
        self.capacity = a_capacity(
            max_batch_size=model.max_batch_size,
            max_token_budget=model.token_budget,
            num_blocks=1200,
            block_size=8,
            max_model_len=LONGEST,
        )
        self.adapters = None
        if model.max_loras:
            self.adapters = LoraAdapters(model.max_loras, 8)
        self.runner = self._runner(folder / "model", adapters=self.adapters)
        self.draft = None
        if model.has_draft:
            sizes = {**SIZES, "hidden_size": 32, "intermediate_size": 48}
            make_tiny_model(folder / "draft", model.family, **sizes)
            self.draft = self._runner(folder / "draft", tokens_stay=False, quantizes_head=True)
        self.folder = folder
        for name, seed in (("a", 1), ("b", 2)) if model.max_loras else ():
            make_tiny_adapter(folder / name, made, seed=seed)

    def _runner(self, folder: Path, **options: Any) -> ModelRunner:
        return kernel_runner(
            folder,
            self.capacity,
            graphs=False,
            quantization=self.model.quantization,
            dtype=torch.bfloat16,
            kv_dtype=self.model.kv_dtype,
            fuses=self.model.fuses,
            **options,
        )

    def start(self, *, launches_every_variant: bool) -> None:
        """Do what is done before the engine is ready."""
        if launches_every_variant:
            launch_every_variant(
                self.runner,
                self.capacity,
                has_adapters=self.adapters is not None,
                draft=self.draft,
                clock=ManualClock(),
            )
        warm_up(self.runner, self.capacity)
        if self.model.has_graphs:
            settings = Settings(model_uri="file:///model", overlap="off")
            capture_graphs(
                settings,
                self.runner,
                self.capacity,
                lambda _stage, _fraction: None,
                draft=self.draft,
                new_capture=RecomputeCapture,
            )

    def serve(self, asked: Sequence[Asked], *, overlap: bool, drafts: int) -> None:
        """Answer these requests to their ends."""
        proposer: Proposer | None = None
        if self.draft is not None:
            proposer = DraftModel(self.draft, NoPacer(), self.capacity, ManualClock())
        engine = Engine(
            self.runner,
            a_model_info(vocab_size=VOCAB),
            self.capacity,
            NoPacer(),
            limits=Limits(self.capacity.max_batch_size, self.capacity.max_token_budget),
            clock=ManualClock(),
            options=EngineOptions(
                overlap=overlap, adapters=self.adapters, draft_tokens=drafts, proposer=proposer
            ),
        )
        if self.adapters is not None and not self.adapters.names:
            for name in "ab":
                loaded = engine.change_adapters(LoadAdapter(1, name, str(self.folder / name)))
                assert loaded.error is None, loaded.error
        for number, each in enumerate(asked):
            for copy in range(each.count):
                prompt = [(5 + 7 * (place % 6) + copy) % VOCAB for place in range(each.length)]
                engine.submit(
                    Submit(
                        f"{number} {copy}",
                        prompt,
                        each.sampling,
                        adapter=each.adapter if self.adapters else "",
                    ),
                    Anything() if each.has_grammar else None,
                )
        while not engine.is_idle:
            for output in engine.step():
                assert output.error is None, output.error


def compiled_by(name: str, *, launches_every_variant: bool = True) -> dict[str, dict[str, int]]:
    """Return how many variants of each kernel the start of a model compiles, and its traffic."""
    options = Sampling(3, temperature=0.7, presence_penalty=0.5, logprobs=2, prompt_logprobs=1)
    # A variant that is missing is no reason to look for a smaller example: all are wanted.
    quick = settings(max_examples=4, deadline=None, database=None, derandomize=True, phases=PHASES)
    started, asked_for = Compilations(), Compilations()
    with tempfile.TemporaryDirectory() as folder, launchers_beside_references():
        served = Served(MODELS[name], Path(folder))
        with started.counted():
            served.start(launches_every_variant=launches_every_variant)

        @quick
        @example(asked=[Asked(290, 1, Sampling(2))], overlap=False, drafts=0)
        @example(asked=[Asked(3, 2100, options, "a", has_grammar=True)], overlap=False, drafts=0)
        @example(asked=[Asked(66, 9, Sampling(9, temperature=0.0))], overlap=False, drafts=3)
        @given(
            asked=st.lists(ASKED, min_size=1, max_size=4),
            overlap=st.booleans(),
            drafts=st.sampled_from((0, 3)),
        )
        def play(asked: list[Asked], *, overlap: bool, drafts: int) -> None:
            served.serve(asked, overlap=overlap and not drafts, drafts=drafts)

        with asked_for.counted():
            play()
    return {"start": started.variants, "traffic": asked_for.variants}


PHASES = (Phase.explicit, Phase.generate)


def main() -> None:
    """Print what was found of the models that are named, or of all."""
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(MODELS)
    found = {name: compiled_by(name) for name in names}
    without = compiled_by("fp8", launches_every_variant=False)
    json.dump({"found": found, "without": without}, sys.stdout)


if __name__ == "__main__":
    main()
