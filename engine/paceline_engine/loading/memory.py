"""How much memory there is, and how many KV blocks fit into what the weights leave."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline_engine.core.graph_sizes import MOST_CHUNKS
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import DoesNotFit
from paceline_engine.hardware.devices import CPU_KV_BYTES, CPU_MAX_MODEL_LEN
from paceline_engine.hardware.kernel_files import cgroups, read_text
from paceline_engine.hardware.model_size import Precision, size_of, step_bytes_per_token
from paceline_engine.kv_cache import swap
from paceline_engine.settings import Quantization, Settings
from paceline_kernels.fp8 import CODES
from paceline_wire.limits import Capacity

# Programs of decode attention on the largest device: four on each of 160 multiprocessors.
_PROGRAMS = 640
# Logits in a group of `paceline_kernels.sampling`, which is not imported: it needs Triton.
_GROUP = 128
# Of a cgroup of version 2 and of version 1: its limit, what it has, and in memory.stat the cached
# files that nobody has read lately.
_LIMITS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the device, or on a CPU of the container."""

    total_bytes: int
    free_bytes: int


def measure(device: torch.device) -> DeviceMemory:
    """Return what the device has now."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free)
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    host = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    memory = DeviceMemory(host["MemTotal"], host["MemAvailable"])
    return within_container(memory, Path("/"))


def within_container(memory: DeviceMemory, root: Path) -> DeviceMemory:
    """Keep to the container's limits, beyond which the kernel kills, whatever the host has free."""
    for cgroup in cgroups("memory", root):
        memory = _within(memory, cgroup)
    return memory


def _within(memory: DeviceMemory, cgroup: Path) -> DeviceMemory:
    for limit_file, used_file, cached_files in _LIMITS:
        limit, used = (read_text(cgroup / name).strip() for name in (limit_file, used_file))
        if not limit.isdecimal() or not used.isdecimal():
            continue  # `max`, or nothing
        stat = dict(line.split() for line in read_text(cgroup / "memory.stat").splitlines())
        # Cached files count as used, but the kernel drops them before it kills.
        free = int(limit) - int(used) + int(stat.get(cached_files, 0))
        return DeviceMemory(
            min(int(limit), memory.total_bytes), max(0, min(free, memory.free_bytes))
        )
    return memory


def weight_bytes(
    config: ModelConfig,
    dtype: torch.dtype,
    quantization: Quantization,
    *,
    kept: int | None = None,
) -> int:
    """Return what the weights take: quantised, a byte a weight in a layer's products, and scales.

    Embedding, head, norms and biases keep their type. What a file's own blocks take, `kept`, only
    the file can tell.
    """
    if kept is not None:
        return kept
    precision = Precision(dtype.itemsize, "" if quantization == "none" else quantization)
    return size_of(config, precision).weight_bytes


def require_weights_fit(
    config: ModelConfig,
    dtype: torch.dtype,
    quantization: Quantization,
    memory: DeviceMemory,
    *,
    kept: int | None = None,
) -> None:
    """Raise `DoesNotFit` before loading: else an hour of loading would end in an OOM kill."""
    needed = weight_bytes(config, dtype, quantization, kept=kept)
    if needed > memory.free_bytes:
        raise DoesNotFit(
            f"The weights need {_gib(needed)} ({config.num_parameters:,} parameters in "
            f"{_words(dtype, quantization)}), but only {_gib(memory.free_bytes)} of "
            f"{_gib(memory.total_bytes)} are free."
        )


def require_both_fit(
    configs: Sequence[ModelConfig],
    dtype: torch.dtype,
    quantizations: Sequence[Quantization],
    memory: DeviceMemory,
    *,
    kept: Sequence[int | None] = (None, None),
) -> None:
    """Refuse a draft model, the second, whose weights do not fit beside the model's."""
    model_bytes, draft_bytes = (
        weight_bytes(config, dtype, quantization, kept=kept)
        for config, quantization, kept in zip(configs, quantizations, kept, strict=True)
    )
    if model_bytes + draft_bytes > memory.free_bytes:
        raise DoesNotFit(
            f"The weights need {_gib(model_bytes)} and the draft model's {_gib(draft_bytes)}, "
            f"but only {_gib(memory.free_bytes)} of {_gib(memory.total_bytes)} are free."
        )


def kv_dtype(settings: Settings, dtype: torch.dtype) -> torch.dtype:
    """Return the type in which a model that computes in `dtype` stores keys and values."""
    return CODES if settings.kv_cache_dtype == "fp8" else dtype


def kv_bytes_per_token(config: ModelConfig, stored: torch.dtype) -> int:
    """Return what one token takes in all layers, its exponents included where it is FP8."""
    precision = Precision(stored.itemsize, has_fp8_kv=stored == CODES)
    return size_of(config, precision).kv_bytes_per_token


def peak_step_bytes(config: ModelConfig, max_tokens: int, dtype: torch.dtype) -> int:
    """Estimate what the widest moment of a full step takes beside weights and cache."""
    return max_tokens * step_bytes_per_token(config, dtype.itemsize)


def graph_bytes(config: ModelConfig, num_rows: int, block_size: int, dtype: torch.dtype) -> int:
    """Estimate what captured decodes of so many rows take beside weights and cache.

    Logits twice (made, and where they are left), three numbers of each group of them that a draw
    looks at, the widest moment of their step, a table of blocks, and the parts of rows that
    attention joins: two of each program, in float32. What the driver keeps for each graph is not
    counted.
    """
    logits = 2 * num_rows * config.vocab_size * dtype.itemsize
    groups = num_rows * -(-config.vocab_size // _GROUP) * 3 * torch.float32.itemsize
    table = num_rows * -(-config.max_len // block_size) * torch.int32.itemsize
    step = peak_step_bytes(config, num_rows, dtype)
    return logits + groups + step + table + _parts_bytes(config)


def mixed_bytes(
    config: ModelConfig, num_rows: int, num_tokens: int, block_size: int, dtype: torch.dtype
) -> int:
    """Estimate what graphs of mixed steps of up to so many tokens take.

    A step's numbers and its tables of blocks, its states, the widest moment of the largest in
    memory of their own, and the parts of rows that attention joins. What the driver keeps of each
    graph is not counted.
    """
    numbers = 4 * num_tokens * torch.int64.itemsize
    sequences = min(num_rows, num_tokens) + MOST_CHUNKS
    tables = sequences * -(-config.max_len // block_size) * torch.int32.itemsize
    states = num_tokens * config.hidden_size * dtype.itemsize
    step = peak_step_bytes(config, num_tokens, dtype)
    return numbers + tables + states + step + _parts_bytes(config)


def _parts_bytes(config: ModelConfig) -> int:
    group = config.num_q_heads // config.num_kv_heads
    return 2 * _PROGRAMS * group * (config.head_size + 1) * torch.float32.itemsize


def staged_bytes(settings: Settings, config: ModelConfig, dtype: torch.dtype) -> int:
    """Return what swapped blocks take on a GPU, on their way to host memory and back."""
    per_token = kv_bytes_per_token(config, kv_dtype(settings, dtype))
    return swap.staged_bytes(settings.swap_bytes, per_token * settings.block_size)


def kv_bytes(
    settings: Settings, device: torch.device, memory: DeviceMemory, step_bytes: int
) -> int:
    """Return the KV cache's memory: what is free after the weights and beside a full step.

    On a CPU not more than a default: the kernel kills a container that fills all it may have.
    Raises `DoesNotFit` for a size that was asked for and is not free.
    """
    if (wanted := settings.kv_cache_bytes) is None:
        reserved = int(memory.total_bytes * (1 - settings.kv_cache_memory_fraction))
        left = max(0, memory.free_bytes - reserved - step_bytes)
        return min(left, CPU_KV_BYTES) if device.type == "cpu" else left
    if wanted > memory.free_bytes:
        raise DoesNotFit(
            f"The KV cache is to have {_gib(wanted)} (PACELINE_ENGINE_KV_CACHE_BYTES), but after "
            f"the weights only {_gib(memory.free_bytes)} of {_gib(memory.total_bytes)} are free."
        )
    return wanted


def capacity(
    settings: Settings,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    kv: int,
    *,
    beside: Sequence[ModelConfig] = (),
) -> Capacity:
    """Cut `kv` bytes into blocks, and the longest sequence to what they hold.

    Models `beside` the first have every block once more.
    """
    stored = kv_dtype(settings, dtype)
    per_token = sum(kv_bytes_per_token(each, stored) for each in (config, *beside))
    num_blocks = kv // (per_token * settings.block_size)
    held = num_blocks * settings.block_size
    asked = settings.max_model_len
    if num_blocks == 0 or (asked is not None and min(asked, config.max_len) > held):
        tokens = settings.block_size if asked is None else min(asked, config.max_len)
        raise DoesNotFit(
            f"The KV cache of {_gib(kv)} holds {held:,} tokens of {per_token:,} bytes, but one "
            f"sequence of {tokens:,} tokens needs {_gib(tokens * per_token)}: raise the memory "
            "or lower the context length."
        )
    default = CPU_MAX_MODEL_LEN if device.type == "cpu" else config.max_len
    return Capacity(
        max_batch_size=settings.max_batch_size,
        max_token_budget=settings.max_token_budget,
        num_blocks=num_blocks,
        block_size=settings.block_size,
        max_model_len=min(config.max_len, asked or default, held),
    )


def _words(dtype: torch.dtype, quantization: Quantization) -> str:
    name = str(dtype).removeprefix("torch.")
    if quantization == "as_stored":
        return f"the file's own kinds and {name}"
    return name if quantization == "none" else f"{quantization} and {name}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"
