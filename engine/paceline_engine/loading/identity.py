"""What a step's cost depends on: engines that agree on it may share a step model."""

import platform
from pathlib import Path

import torch

from paceline_engine.settings import Settings

_CPU_INFO = Path("/proc/cpuinfo")


def device_name(device: torch.device) -> str:
    """Return `cpu`, or `cuda:` and the GPU's name, which chooses the step model's prior."""
    if device.type != "cuda":
        return device.type
    return f"cuda:{torch.cuda.get_device_name(device)}"


def cost_features(device: torch.device, settings: Settings, *, compiled: bool) -> list[str]:
    """Name what changes a step's cost under the same model and device, sorted."""
    features = [f"block_size={settings.block_size}"]
    if settings.quantization != "none":
        features.append(f"quantization={settings.quantization}")
    if settings.kv_cache_dtype != "auto":
        features.append(f"kv_cache_dtype={settings.kv_cache_dtype}")
    if settings.prefill_attention != "auto":
        features.append(f"prefill_attention={settings.prefill_attention}")
    if device.type != "cpu" and settings.graphs == "off":
        features.append("graphs=off")
    if settings.tensor_parallel_size > 1:
        features.append(f"tensor_parallel_size={settings.tensor_parallel_size}")
    if device.type == "cpu":
        # The name of a CPU is no device's name for torch, and its threads are a choice.
        features += [f"cpu={cpu_name(_CPU_INFO)}", f"threads={torch.get_num_threads()}"]
        features += [f"ops={'compiled' if compiled else 'torch'}"]
    return sorted(features)


def cpu_name(cpu_info: Path) -> str:
    """Return the processor's product name, or its architecture where the kernel does not tell."""
    try:
        text = cpu_info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, "") or platform.machine()
