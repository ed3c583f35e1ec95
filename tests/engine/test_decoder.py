"""The decoder computes what transformers computes, family by family, on either back end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline_engine.attention.backend import AttentionBackend, cpu_attention
from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.attention.native_attention import NativeAttention
from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.attention.reference_attention import ReferenceAttention
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.kv_cache.tensors import allocate
from paceline_engine.loading.weights import build_decoder
from paceline_engine.model.layers.linear import PlainLinear, TransposedLinear
from paceline_engine.model.layers.packed_linear import PackedLinear
from paceline_engine.model.layers.rotary import rotations
from paceline_engine.model.ops import KernelOps, Ops
from paceline_engine.runner.cpu_tables import HostTables
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.cpu_sampler import CpuSampler
from paceline_kernels.cpu import LANES, NativeOps, native_ops
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling

BLOCK_SIZE = 4
NUM_ROWS = 4
CPU = torch.device("cpu")
ATTENTION = {
    "references": ReferenceAttention,
    "compiled": NativeAttention,
    "kernels": KernelAttention,
    "kernels, prompts by torch": KernelAttention,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GEMMA: dict[str, Any] = {"sliding_window": 6, "head_dim": 16, "query_pre_attn_scalar": 24}
MODELS: dict[str, tuple[Family, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied head": ("llama", {"tie_word_embeddings": True}),
    "llama, llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama, linear rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    ),
    "llama, wide heads": ("llama", {"head_dim": 32}),
    "llama, one kv head": ("llama", {"num_key_value_heads": 1}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen2, window over the last layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 6}),
    "gemma2": ("gemma2", GEMMA | {"attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.0}),
    "gemma3": ("gemma3_text", GEMMA | {"sliding_window_pattern": 3}),
    "gemma3, two ropes, softcap": (
        "gemma3_text",
        GEMMA
        | {
            "sliding_window_pattern": 2,
            "final_logit_softcapping": 3.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        },
    ),
    "gemma3, heads of 256": ("gemma3_text", GEMMA | {"head_dim": 256}),
}


def _ops(back_end: str) -> Ops:
    if back_end == "compiled":
        return _native()
    return KernelOps()


def _native() -> NativeOps:
    native = native_ops()
    return native or pytest.skip("no C compiler here")


def _runner(folder: Path, back_end: str) -> ModelRunner:
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    ops = _ops(back_end)
    decoder = build_decoder(
        config,
        checkpoint.tensors,
        ops,
        device=CPU,
        dtype=torch.float32,
        progress=lambda _fraction: None,
    )
    kv = allocate(config, 64, BLOCK_SIZE, device=CPU, dtype=torch.float32)
    tables = rotations(config, config.max_len)
    prefill = PrefillChoice({0: "torch" in back_end})
    attention: AttentionBackend = (
        KernelAttention(config, kv, tables, prefill)
        if "kernels" in back_end
        else cpu_attention(config, ops, kv, tables, torch.float32)
    )
    assert isinstance(attention, ATTENTION[back_end]) or config.attention_softcap
    num_columns = -(-config.max_len // BLOCK_SIZE)
    return ModelRunner(
        decoder,
        attention,
        CpuSampler((), b"salt"),
        InputBatch(NUM_ROWS, num_columns, BLOCK_SIZE, config.vocab_size, salt=None),
        DeviceTables(NUM_ROWS, num_columns, BLOCK_SIZE, 64, CPU)
        if "kernels" in back_end
        else HostTables(NUM_ROWS, num_columns, BLOCK_SIZE),
    )


def _request(name: str, token_ids: list[int], row: int, block_ids: list[int]) -> Request:
    sampling = Sampling(max_tokens=1, temperature=0.0)
    return Request(name, token_ids, len(token_ids), sampling, row=row, block_ids=block_ids)


def _logits(runner: ModelRunner, slices: Sequence[ScheduledChunk]) -> torch.Tensor:
    batch = Batch(tuple(slices), sum(piece.is_decode for piece in slices))
    return runner.logits(batch)


@pytest.mark.parametrize("back_end", ATTENTION)
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_transformers(tmp_path: Path, name: str, back_end: str) -> None:
    """A step of two decodes, a fresh prompt and the rest of a cut one, over scattered blocks."""
    family, config = MODELS[name]
    if back_end == "compiled":
        config = {"head_dim": LANES} | config
    reference = make_tiny_model(tmp_path, family, **config)
    runner = _runner(tmp_path, back_end)
    lengths = {"decode": 14, "short decode": 3, "fresh": 9, "cut": 23}
    shuffled = torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist()
    requests = [
        _request(
            name,
            torch.randint(300, (length,), generator=torch.Generator().manual_seed(i)).tolist(),
            i,
            [shuffled.pop() for _ in range(-(-length // BLOCK_SIZE))],
        )
        for i, (name, length) in enumerate(lengths.items())
    ]
    decode, short, fresh, cut = requests

    before = [
        ScheduledChunk(decode, 0, 13, samples=False, is_decode=False),
        ScheduledChunk(short, 0, 2, samples=False, is_decode=False),
        ScheduledChunk(cut, 0, 10, samples=False, is_decode=False),
    ]
    assert _logits(runner, before).shape == (0, 300)
    ours = _logits(
        runner,
        [
            ScheduledChunk(decode, 13, 1, samples=True, is_decode=True),
            ScheduledChunk(short, 2, 1, samples=True, is_decode=True),
            ScheduledChunk(fresh, 0, 9, samples=True, is_decode=False),
            ScheduledChunk(cut, 10, 13, samples=True, is_decode=False),
        ],
    )

    with torch.inference_mode():
        theirs = [reference(torch.tensor([r.token_ids])).logits[0, -1] for r in requests]
    torch.testing.assert_close(ours, torch.stack(theirs), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("layout", [PlainLinear, PackedLinear, TransposedLinear])
@pytest.mark.parametrize("rows", [1, 5, 16, 100])
def test_every_weight_layout_multiplies_alike(layout: Any, rows: int) -> None:
    """How a weight lies in memory is the device's affair, not the result's."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator) for shape in ((rows, 48), (80, 48), (80,))
    )

    torch.testing.assert_close(layout(weight, bias)(x), x @ weight.t() + bias)
    torch.testing.assert_close(layout(weight)(x), x @ weight.t())
