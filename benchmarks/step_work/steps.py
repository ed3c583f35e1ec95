"""Steps of true sizes on a GPU that is not there, and every launch of them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from gpu_suite.shapes import CONFIGS, RandomTensors
from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.checkpoint.tokenizer import NO_TOKENIZER
from paceline_engine.checkpoint.uri import Located
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.graph_sizes import mixed_sizes, padded_size
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.request import Request
from paceline_engine.hardware.cores_reader import read_share
from paceline_engine.loading import load, model_trial
from paceline_engine.loading.dtype import DtypeChoice
from paceline_engine.loading.load import LoadedModel, load_checkpoint
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.group import Group
from paceline_engine.model.row_stages import Fusions, RowProducts, counters
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_engine.settings import Settings
from paceline_kernels.row_products import MAX_ROWS
from paceline_testing.device_record import Launch
from paceline_testing.fake_cuda import FakeCuda
from paceline_wire import Sampling

BLOCK_SIZE = 16
_MAX_MODEL_LEN = 8192 + BLOCK_SIZE
"""A captured graph's grids follow from it."""


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens of a step, in bfloat16."""

    name: str
    contexts: tuple[int, ...] = ()
    """Of each decode, itself included."""
    chunks: tuple[tuple[int, int], ...] = ()
    """Of each prompt: tokens computed, and context with them."""
    in_graph: bool = False
    """Replayed from a graph, padded to a size that is captured."""
    num_adapters: int = 0
    """Every row has one of so many, in turn."""

    @property
    def num_tokens(self) -> int:
        """Count decodes and tokens of prompts."""
        return len(self.contexts) + sum(tokens for tokens, _ in self.chunks)

    @property
    def num_rows(self) -> int:
        """Count sequences, each of which samples."""
        return len(self.contexts) + len(self.chunks)


DECODE = Step("64 decodes at context 1k", contexts=(1024,) * 64)
MIXED = Step("32 decodes at context 1k beside a prompt of 512", (1024,) * 32, ((512, 512),))
IN_GRAPH = replace(MIXED, name=f"{MIXED.name}, in a graph", in_graph=True)
PREFILL = Step("prompt of 2,048", chunks=((2048, 2048),))
LONG_PREFILL = Step("prompt of 8,192", chunks=((8192, 8192),))


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A model of true sizes, of which only the sizes are there."""

    name: str
    fake: FakeCuda
    loaded: LoadedModel
    config: ModelConfig
    weight_size: int = 2
    """Bytes of a weight of a layer."""

    def launches(self, step: Step) -> tuple[Launch, ...]:
        """Run a step; return what the device is given until the host has its tokens."""
        record = self.fake.record
        with self.fake.visible():
            runner, requests = self.loaded.runner, _requests(step)
            if step.contexts:  # of this size alone: captures of an earlier step are given up
                capture = CudaGraphCapture(runner.device)
                runner.capture_decodes(capture, [len(step.contexts)], lambda _: None)
            shorter = tuple(context - 1 for context in step.contexts)
            before = Step("", shorter, num_adapters=step.num_adapters)
            if before.contexts:  # from then on the rows hold what decodes need
                runner.launch(_batch(before, requests)).result()
            if step.in_graph:
                self._capture_mixed(step)
            record.clear()
            runner.launch(_batch(step, requests)).result()
            runner.keep_mixed([])
        return tuple(record.launches)

    @contextmanager
    def fusing(self, plan: Fusions) -> Iterator[None]:
        """Fuse this in decodes of few rows, whatever the model was loaded with."""
        runner, before = self.loaded.runner, self.decoder
        with self.fake.visible():
            products = RowProducts({MAX_ROWS: plan}, counters(before))
        runner._decoder = replace(before, few_rows=products)  # noqa: SLF001 - set for good at load
        try:
            yield
        finally:
            runner._decoder = before  # noqa: SLF001 - as above

    @property
    def decoder(self) -> Decoder:
        """All weights, which are shapes alone."""
        return self.loaded.runner._decoder  # noqa: SLF001 - nobody else asks for it

    def _capture_mixed(self, step: Step) -> None:
        runner = self.loaded.runner
        capture = CudaGraphCapture(runner.device)
        if not step.contexts:  # they are captured behind decodes
            runner.capture_decodes(capture, [1], lambda _: None)
        sizes = mixed_sizes(self.loaded.capacity.max_token_budget)
        runner.capture_mixed(capture, [padded_size(sizes, step.num_tokens)], lambda _: None)


def fake_model(
    name: str, ranks: int = 1, *, num_layers: int | None = None, **asked: Any
) -> FakeModel:
    """Load the shapes of a model that the suite knows.

    `ranks`: the first one's part of so many. `num_layers`: instead of the model's own. `asked`:
    settings beside the usual ones.
    """
    fake = FakeCuda(num_gpus=ranks)
    fewer = {} if num_layers is None else {"num_hidden_layers": num_layers}
    config = from_hugging_face({**CONFIGS[name], **fewer})
    settings = Settings.model_validate(
        {
            "device": "cuda",
            "max_model_len": _MAX_MODEL_LEN,
            "max_batch_size": 64,
            "max_token_budget": 8192,
            "block_size": BLOCK_SIZE,
            "kv_cache_bytes": 16 << 30,
            "prefill_attention": "triton",
            "row_products": "off",
            "graphs": "off",
            "tensor_parallel_size": ranks,
            **asked,
        }
    )
    tensors = RandomTensors(config, "cuda", torch.bfloat16)
    checkpoint = Checkpoint(config, tensors, lambda: NO_TOKENIZER, None, ())
    with fake.visible(), fake.loading(), _compiling_nothing():
        loaded = load_checkpoint(
            settings,
            Located(name, Path(), revision=""),
            checkpoint,
            Group(0, ranks),
            lambda *_: None,
            share=read_share(),
            dtype=DtypeChoice("bfloat16", "as a GPU computes"),
        )
    return FakeModel(name, fake, loaded, config, 2 if settings.quantization == "none" else 1)


@contextmanager
def _compiling_nothing() -> Iterator[None]:
    """Leave out the start's steps: there is nothing to compile, and no memory to measure."""
    with ExitStack() as stack:
        for module in (load, model_trial):
            stack.enter_context(mock.patch.object(module, "launch_every_variant"))
        stack.enter_context(mock.patch.object(model_trial, "launch_widest"))
        yield


def _requests(step: Step) -> list[Request]:
    requests, block = [], 0
    contexts = [*step.contexts, *(context for _, context in step.chunks)]
    for row, context in enumerate(contexts):
        num_blocks = -(-context // BLOCK_SIZE)
        request = Request(
            id=f"{row}",
            token_ids=[0] * context,
            num_prompt_tokens=context,
            sampling=Sampling(max_tokens=64, temperature=0.0),
            row=row,
            block_ids=list(range(block, block + num_blocks)),
            adapter_slot=row % step.num_adapters if step.num_adapters else None,
        )
        request.enter(row)
        requests.append(request)
        block += num_blocks
    return requests


def _batch(step: Step, requests: Sequence[Request]) -> Batch:
    num_decodes = len(step.contexts)
    decodes = [
        ScheduledChunk(request, context - 1, 1, samples=True, is_decode=True)
        for request, context in zip(requests, step.contexts, strict=False)
    ]
    prompts = [
        ScheduledChunk(request, context - count, count, samples=True, is_decode=False)
        for request, (count, context) in zip(requests[num_decodes:], step.chunks, strict=False)
    ]
    return Batch((*decodes, *prompts), num_decodes)
