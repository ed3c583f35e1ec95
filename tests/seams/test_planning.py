"""What the planner assumes before a pod runs is what the engine will do."""

from pathlib import Path

import pytest
import torch

from paceline_cli.plan import model_files
from paceline_cli.plan.device import CPU, GPUS, Device, find_gpu, prior
from paceline_cli.plan.kv_memory import BLOCK_TOKENS, CPU_KV_BYTES, CPU_MAX_MODEL_LEN, KvMemory
from paceline_cli.plan.model_size import Precision, RanksDoNotDivide, from_config
from paceline_engine.checkpoint import uri
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.errors import BadSettings
from paceline_engine.loading import memory
from paceline_engine.model.sharding import shard_of
from paceline_engine.pacing import prior as engine_prior
from paceline_engine.settings import KvCacheDtype, Quantization, Settings
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
LLAMA = QWEN2 | {"model_type": "llama", "num_key_value_heads": None}
MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
# As the hub has it: what its authors' code assumes is left out.
GEMMA3_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GEMMA3 = {"model_type": "gemma3", "text_config": GEMMA3_TEXT}
GEMMA2 = QWEN3 | {"model_type": "gemma2", "hidden_activation": "gelu_pytorch_tanh"}


def a_gpu(name: str) -> Device:
    device = find_gpu(name, memory_bytes=1 << 34)
    assert device is not None
    return device


@pytest.mark.parametrize(
    "device",
    [CPU, a_gpu("Unheard Of 9000"), *GPUS.values(), a_gpu("NVIDIA H100 80GB HBM3")],
    ids=lambda device: device.name,
)
@pytest.mark.parametrize("has_fp8_kv", [False, True], ids=["", "fp8 kv"])
def test_both_start_from_the_same_step_times(device: Device, *, has_fp8_kv: bool) -> None:
    """The operator may not import the engine, so the table of devices stands twice."""
    precision = Precision(4 if device.is_cpu else 2, has_fp8_kv=has_fp8_kv)
    size = from_config(QWEN3, precision)
    features = ["kv_cache_dtype=fp8"] if has_fp8_kv else []
    dtype = "float32" if device.is_cpu else "bfloat16"
    info = ModelInfo(
        "m", "qwen3", "", dtype, device.name, size.num_parameters, 1, 4096, 1, [2],
        size.kv_bytes_per_token, size.weight_bytes, features=features,
    )  # fmt: skip

    planned, real = prior(device, size), engine_prior.prior_for(info)

    assert planned.theta == pytest.approx(real.model.theta)
    assert planned.knee == real.model.knee
    assert device.min_prefill == real.min_prefill


def test_both_know_the_same_gpus() -> None:
    """One more in the engine is one more here."""
    assert list(GPUS) == list(engine_prior._DEVICES)


@pytest.mark.parametrize(
    "config",
    [QWEN3, QWEN2, LLAMA, MISTRAL, GEMMA2, GEMMA3_TEXT, GEMMA3],
    ids=["qwen3", "qwen2", "llama", "mistral", "gemma2", "gemma3_text", "gemma3"],
)
def test_both_read_the_same_sizes(config: dict[str, object]) -> None:
    """Parameters, KV bytes and the memory of a step, for each family."""
    size, real = from_config(config, Precision(2)), from_hugging_face(config)

    assert size.num_parameters == real.num_parameters
    assert size.kv_bytes_per_token == real.kv_bytes_per_token(2)
    assert size.step_bytes_per_token == memory.peak_step_bytes(real, 1, torch.bfloat16)
    assert size.max_len == real.max_len


@pytest.mark.parametrize(
    "config",
    [QWEN3, QWEN2, LLAMA, MISTRAL, GEMMA2, GEMMA3],
    ids=["qwen3", "qwen2", "llama", "mistral", "gemma2", "gemma3"],
)
@pytest.mark.parametrize("quantization", ["none", "int8", "fp8", "fp8_dynamic"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_both_count_what_is_kept_in_a_byte(
    config: dict[str, object], quantization: Quantization, kv_cache_dtype: KvCacheDtype
) -> None:
    """Weights with their scales, keys and values with their exponents."""
    named = {"none": "", "int8": "INT8"}.get(quantization, "FP8")
    precision = Precision(2, quantization=named, has_fp8_kv=kv_cache_dtype == "fp8")
    settings = Settings(kv_cache_dtype=kv_cache_dtype)
    stored = memory.kv_dtype(settings, torch.bfloat16)

    size, real = from_config(config, precision), from_hugging_face(config)

    assert size.weight_bytes == memory.weight_bytes(real, torch.bfloat16, quantization)
    assert size.kv_bytes_per_token == memory.kv_bytes_per_token(real, stored)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("config", [QWEN3, QWEN2, GEMMA2], ids=["qwen3", "qwen2", "gemma2"])
def test_both_share_a_model_among_ranks_alike(
    config: dict[str, object], quantization: Quantization, ranks: int
) -> None:
    """What each rank holds: its part of heads and MLP, and all of embedding, norms and head."""
    precision = Precision(2, quantization="" if quantization == "none" else "INT8")

    size = from_config(config, precision, ranks=ranks)
    real = shard_of(from_hugging_face(config), ranks)

    assert size.num_parameters == real.num_parameters
    assert size.weight_bytes == memory.weight_bytes(real, torch.bfloat16, quantization)
    assert size.kv_bytes_per_token == real.kv_bytes_per_token(2)
    assert size.step_bytes_per_token == memory.peak_step_bytes(real, 1, torch.bfloat16)


def test_both_refuse_ranks_that_do_not_divide() -> None:
    """Named by what they do not divide."""
    with pytest.raises(RanksDoNotDivide, match="16 attention heads, got 3"):
        from_config(QWEN3, Precision(2), ranks=3)
    with pytest.raises(BadSettings, match="16 attention heads"):
        shard_of(from_hugging_face(QWEN3), 3)


def test_both_leave_room_for_a_draft_model() -> None:
    """Its weights, its keys and values of every token, and the wider of both steps."""
    settings, gpu = Settings(max_model_len=4096), a_gpu("NVIDIA H100 80GB HBM3")
    model, draft = (from_config(config, Precision(2)) for config in (QWEN2, QWEN3))
    configs = [from_hugging_face(config) for config in (QWEN2, QWEN3)]
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


def test_the_cache_is_cut_as_the_engine_cuts_it() -> None:
    """On a CPU it has a size of its own."""
    assert Settings.model_fields["block_size"].default == BLOCK_TOKENS
    assert memory._CPU_KV_BYTES == CPU_KV_BYTES
    assert memory._CPU_MAX_MODEL_LEN == CPU_MAX_MODEL_LEN


def test_both_know_the_same_built_in_models() -> None:
    """A name that is served can be planned."""
    assert model_files.BUILTIN == uri._BUILTIN


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
