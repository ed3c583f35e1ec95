"""Chooses what the model runs on, and refuses in one sentence what could not serve it.

`look` asks torch and the machine; the rest decides from what it saw.
"""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import BadSettings, UnsupportedDevice, UnsupportedModel
from paceline_engine.settings import Settings
from paceline_kernels.checks import MAX_GROUP, MAX_HEAD_SIZE, MAX_VOCAB, MIN_CAPABILITY

FP8_CAPABILITY = (8, 9)
"""The first whose instructions know E4M3."""

_DRIVER_NODE = Path("/dev/nvidiactl")
_DRIVER_VERSION = Path("/sys/module/nvidia/version")
_ON_THE_CPU = "PACELINE_ENGINE_DEVICE=cpu serves without it"


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU that torch can use."""

    name: str
    capability: tuple[int, int]
    """Major and minor."""


@dataclass(frozen=True, slots=True)
class HostMachine:
    """GPUs and driver as they were found at start."""

    gpus: tuple[VisibleGpu, ...] = ()
    cuda: str | None = None
    """CUDA version that torch was built for; None where it was built for CPUs alone."""
    has_driver: bool = False
    """NVIDIA's device file is there."""
    driver: str = "unknown"
    """The driver's version."""
    complaint: str = ""
    """Why CUDA did not start, in torch's words."""
    is_hidden: bool = False
    """Somebody hid the GPUs from this process."""


def look(environment: Mapping[str, str] = os.environ) -> HostMachine:
    """Ask torch for GPUs, and the machine for a driver."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = (torch.cuda.get_device_properties(index) for index in range(count))
    return HostMachine(
        gpus=tuple(VisibleGpu(gpu.name, (gpu.major, gpu.minor)) for gpu in gpus),
        cuda=torch.version.cuda,
        has_driver=_DRIVER_NODE.exists(),
        driver=_DRIVER_VERSION.read_text().strip() if _DRIVER_VERSION.exists() else "unknown",
        complaint=str(caught[0].message).partition("(Triggered")[0].strip() if caught else "",
        is_hidden=environment.get("CUDA_VISIBLE_DEVICES") in {"", "-1"},
    )


def choose_device(settings: Settings, machine: HostMachine, rank: int = 0) -> torch.device:
    """Choose the rank's device.

    Raises UnsupportedDevice where a GPU is there that cannot serve, and BadSettings where the
    settings ask for one, for more or for FP8, and the machine has not got it.
    """
    if settings.device == "cpu":
        return _cpu(settings)
    if not machine.gpus:
        _require_none_wanted(settings, machine)
        return _cpu(settings)
    size = settings.tensor_parallel_size
    if size > len(machine.gpus):
        raise BadSettings(
            f"PACELINE_ENGINE_TENSOR_PARALLEL_SIZE is {size}, but torch finds "
            f"{len(machine.gpus)} CUDA devices."
        )
    _require_capable(settings, machine.gpus[rank])
    return torch.device("cuda", rank)


def _cpu(settings: Settings) -> torch.device:
    if settings.prefill_attention != "auto":
        raise BadSettings(
            f"PACELINE_ENGINE_PREFILL_ATTENTION is {settings.prefill_attention}, which is for a "
            "GPU: on a CPU it must be auto."
        )
    if settings.graphs == "on":
        raise BadSettings("PACELINE_ENGINE_GRAPHS is on, which needs a GPU: on a CPU it is off.")
    return torch.device("cpu")


def require_kernels_cover(config: ModelConfig, device: torch.device) -> None:
    """Refuse a model whose attention or vocabulary no kernel computes; on a CPU any is computed."""
    if device.type == "cpu":
        return
    if config.head_size > MAX_HEAD_SIZE:
        raise UnsupportedModel(
            f"The model's config: head_dim must be at most {MAX_HEAD_SIZE} on a GPU, "
            f"got {config.head_size}."
        )
    group = config.num_q_heads // config.num_kv_heads
    if group > MAX_GROUP:
        raise UnsupportedModel(
            f"The model's config: num_attention_heads must be at most {MAX_GROUP} times "
            f"num_key_value_heads on a GPU, got {config.num_q_heads} and {config.num_kv_heads}."
        )
    if config.vocab_size > MAX_VOCAB:
        raise UnsupportedModel(
            f"The model's config: vocab_size must be at most {MAX_VOCAB} on a GPU, "
            f"got {config.vocab_size}."
        )


def _require_none_wanted(settings: Settings, machine: HostMachine) -> None:
    """Refuse where a GPU is wanted: asked for, or there with a driver that torch cannot use."""
    is_broken = machine.has_driver and machine.cuda is not None and not machine.is_hidden
    is_asked_for = settings.device == "cuda"
    if not is_asked_for and not is_broken:
        return
    if machine.cuda is None:
        raise BadSettings(
            "PACELINE_ENGINE_DEVICE is cuda, but this torch is built for CPUs alone: it needs one "
            "that is built for CUDA."
        )
    if not is_broken:
        hidden = "CUDA_VISIBLE_DEVICES hides every GPU" if machine.is_hidden else "there is no GPU"
        raise BadSettings(
            f"PACELINE_ENGINE_DEVICE is cuda, but torch finds no CUDA device: {hidden}."
        )
    reason = f": {machine.complaint.rstrip('.')}" if machine.complaint else ""
    raise UnsupportedDevice(
        f"NVIDIA's driver {machine.driver} is there, but torch, built for CUDA {machine.cuda}, "
        f"finds no device{reason}; it needs a driver for CUDA {machine.cuda} and a GPU that it "
        f"shows, or {_ON_THE_CPU}."
    )


def _require_capable(settings: Settings, gpu: VisibleGpu) -> None:
    for name in ("quantization", "draft_quantization"):
        if getattr(settings, name) == "as_stored":
            raise BadSettings(
                f"PACELINE_ENGINE_{name.upper()} is as_stored, whose products are for a CPU: "
                f"{_ON_THE_CPU}."
            )
    if gpu.capability < MIN_CAPABILITY:
        raise UnsupportedDevice(
            f"The kernels need a GPU of compute capability {_dotted(MIN_CAPABILITY)} or newer, "
            f"got {_dotted(gpu.capability)} ({gpu.name}); {_ON_THE_CPU}."
        )
    is_bfloat16 = settings.dtype in {"auto", "bfloat16"}
    for name in ("quantization", "draft_quantization"):
        if getattr(settings, name) == "fp8_dynamic" and not is_bfloat16:
            raise BadSettings(
                f"PACELINE_ENGINE_{name.upper()} is fp8_dynamic, whose products on a GPU are "
                f"bfloat16: PACELINE_ENGINE_DTYPE must be auto or bfloat16, got {settings.dtype}."
            )
    if gpu.capability >= FP8_CAPABILITY:
        return
    for name in ("kv_cache_dtype", "quantization", "draft_quantization"):
        if (value := getattr(settings, name)) in {"fp8", "fp8_dynamic"}:
            raise BadSettings(
                f"PACELINE_ENGINE_{name.upper()} is {value}, which needs a GPU of compute "
                f"capability {_dotted(FP8_CAPABILITY)} or newer, "
                f"got {_dotted(gpu.capability)} ({gpu.name})."
            )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
