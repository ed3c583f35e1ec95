"""What the planner assumes before a pod runs is what the engine will do."""

from pathlib import Path

import pytest
import torch

from paceline_cli.plan import model_files
from paceline_cli.plan.assumed_times import assumed_times
from paceline_cli.plan.kv_memory import KvMemory
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.stored_weights import kept_bytes
from paceline_engine.hardware.devices import CPU, GPUS, Device, device_named
from paceline_engine.hardware.model_size import Precision, size_of
from paceline_engine.loading import memory
from paceline_engine.loading.weights import blocks_of
from paceline_engine.pacing.prior import prior_for
from paceline_engine.settings import Settings
from paceline_wire import ModelInfo

QWEN3 = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}
QWEN2 = QWEN3 | {"model_type": "qwen2", "head_dim": None, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    "device",
    [CPU, device_named("Unheard Of 9000"), *GPUS.values(), device_named("NVIDIA H100 80GB HBM3")],
    ids=lambda device: device.name,
)
@pytest.mark.parametrize("has_fp8_kv", [False, True], ids=["", "fp8 kv"])
def test_both_start_from_the_same_step_times(device: Device, *, has_fp8_kv: bool) -> None:
    """The planner knows a model's config, the pacer what the loaded engine says of itself."""
    precision = Precision(4 if device.is_cpu else 2, has_fp8_kv=has_fp8_kv)
    size = size_of(from_hugging_face(QWEN3), precision)
    features = ["kv_cache_dtype=fp8"] if has_fp8_kv else []
    dtype = "float32" if device.is_cpu else "bfloat16"
    info = ModelInfo(
        "m", "qwen3", "", dtype, device.name, size.num_parameters, 1, 4096, 1, [2],
        size.kv_bytes_per_token, size.weight_bytes, features=features,
    )  # fmt: skip

    planned, real = assumed_times(device, size), prior_for(info)

    assert planned.theta == real.model.theta
    assert planned.knee == real.model.knee
    assert device.min_prefill == real.min_prefill


def test_both_leave_room_for_a_draft_model() -> None:
    """Its weights, its keys and values of every token, and the wider of both steps."""
    settings, gpu = Settings(max_model_len=4096), device_named("NVIDIA H100 80GB HBM3")
    configs = [from_hugging_face(config) for config in (QWEN2, QWEN3)]
    model, draft = (size_of(config, Precision(2)) for config in configs)
    planned = KvMemory(gpu, model, 0.9, settings.max_token_budget, draft)

    dtype, device = torch.bfloat16, torch.device("cuda")
    real = memory.capacity(
        settings, configs[0], dtype, device, planned.kv_bytes, beside=configs[1:]
    )

    assert planned.weight_bytes == sum(memory.weight_bytes(each, dtype, "none") for each in configs)
    assert planned.num_blocks == real.num_blocks
    budget = settings.max_token_budget
    assert planned.step_bytes == max(
        memory.peak_step_bytes(each, budget, dtype) for each in configs
    )


@pytest.mark.model
def test_both_read_the_same_of_a_gguf_file(tmp_path: Path) -> None:
    """The header alone says all that the whole file does."""
    name = "builtin://smollm2-135m-instruct"
    named = model_files.Named("spec.model.uri", name, None, "")
    size = model_files.model_size(named, precision=Precision(4), cache=tmp_path)
    real = open_checkpoint(model_files._path(named, tmp_path)).config

    assert size.num_parameters == real.num_parameters
    assert size.kv_bytes_per_token == real.kv_bytes_per_token(4)
    assert size.max_len == real.max_len


@pytest.mark.model
def test_both_count_the_same_of_weights_as_they_are_stored(tmp_path: Path) -> None:
    """By the kinds that the header names."""
    named = model_files.Named("spec.model.uri", "builtin://smollm2-135m-instruct", None, "")
    planned = model_files.model_size(named, precision=Precision(4, "AsStored"), cache=tmp_path)
    checkpoint = open_checkpoint(model_files._path(named, tmp_path))

    assert planned.weight_bytes == kept_bytes(blocks_of(checkpoint.tensors).stored, 4)
