"""What is assumed of a device before a step has run on it: memory, speed, and how far to trust it.

The step times are the engine's own prior (engine/paceline_engine/pacing/prior.py), which the
operator may not import; tests/seams holds the two equal. A step of a datasheet's GPU has not been
measured here: the factors say so.
"""

from dataclasses import dataclass, replace
from typing import Final

from paceline_cli.plan.model_size import ModelSize
from paceline_tuner.telemetry import ModelFit

GIB: Final = 1 << 30
KNOWN_FACTOR: Final = 1.5
"""9 of 10 times the true step time lies within the predicted one times or over this factor."""
GUESS_FACTOR: Final = 3.0
"""The same for a CPU, and for a GPU of which only the memory is known."""
REMEMBERED_FACTOR: Final = 1.15
"""The same for coefficients that were fitted on such a pod."""
MIN_PREFILL_GPU: Final = 64
MIN_PREFILL_CPU: Final = 16

_WEIGHT_INEFFICIENCY: Final = 1.36
_KV_INEFFICIENCY: Final = 1.9
_MFU: Final = 0.5
_HOST_MS: Final = 3.0
_HOST_MS_PER_ROW: Final = 0.01
_CPU_GBPS: Final = 10.0
_CPU_GFLOPS: Final = 60.0
_KNEE: Final = 256
_SETTLED_Q_R: Final = 1.1
"""What a fit settles at; the cold 1.3 lasts for the first 200 steps only."""


@dataclass(frozen=True, slots=True)
class Device:
    """What one pod runs on."""

    name: str
    memory_bytes: int | None
    """As the driver reports it; None on a CPU, whose KV cache has a size of its own."""
    gbps: float
    """Memory bandwidth, GB/s."""
    tflops: float
    """Dense bf16."""
    factor: float = KNOWN_FACTOR
    """Step times are believed within times or over this."""

    @property
    def is_cpu(self) -> bool:
        """Weights and cache lie in the host's memory."""
        return self.memory_bytes is None

    @property
    def min_prefill(self) -> int:
        """Prefill tokens that the pacer leaves to every step."""
        return MIN_PREFILL_CPU if self.is_cpu else MIN_PREFILL_GPU


CPU: Final = Device("cpu", None, _CPU_GBPS, _CPU_GFLOPS / 1e3, GUESS_FACTOR)
GPUS: Final = {
    name: Device(name, int(gib * GIB), gbps, tflops)
    for name, gib, gbps, tflops in (
        ("b200", 178.0, 8000.0, 2250.0),
        ("h200", 139.0, 4800.0, 989.0),
        ("h100", 79.0, 3350.0, 989.0),
        ("a100", 79.0, 2000.0, 312.0),
        ("l40s", 44.0, 864.0, 362.0),
        ("a10", 22.0, 600.0, 125.0),
        ("l4", 22.0, 300.0, 121.0),
        ("t4", 14.5, 320.0, 65.0),
        ("4090", 23.5, 1008.0, 165.0),
    )
}
"""By name; the order tells a100 from a10 and l40s from l4."""


def find_gpu(name: str, memory_bytes: int | None = None) -> Device | None:
    """Find a GPU whose name holds a known one; an unknown one needs its memory, else None."""
    if key := known_gpu(name):
        return replace(GPUS[key], name=name, memory_bytes=memory_bytes or GPUS[key].memory_bytes)
    if memory_bytes is None:
        return None
    return Device(name, memory_bytes, 1000.0, 150.0, GUESS_FACTOR)


def is_same_device(name: str, device: Device) -> bool:
    """Whether a device that calls itself `name`, as `NVIDIA H100 80GB HBM3`, is such a one."""
    if device.is_cpu:
        return name.lower().startswith("cpu")
    mine, theirs = (known_gpu(one) or one.lower() for one in (device.name, name))
    return mine == theirs


def known_gpu(name: str) -> str | None:
    """Find the key of a GPU in what it calls itself."""
    return next((key for key in GPUS if key in name.lower()), None)


def prior(device: Device, size: ModelSize) -> ModelFit:
    """Predict step times of this model on this device, as a fit that has settled."""
    theta = _cpu(size) if device.is_cpu else _gpu(device, size)
    return ModelFit(
        theta=theta,
        prior=theta,
        knee=_KNEE,
        correction=(),
        fast=1.0,
        q_r=_SETTLED_Q_R,
        samples=0,
        mape=0.0,
        valid=True,
    )


def _cpu(size: ModelSize) -> tuple[float, ...]:
    token_ms = 2 * size.num_parameters / (_CPU_GFLOPS * 1e6)
    return (
        size.weight_bytes / (_CPU_GBPS * 1e6),
        token_ms,
        0.1 * token_ms,
        1e3 * size.kv_bytes_per_token / (_CPU_GBPS * 1e6),
        _attention_ms(size, _CPU_GFLOPS),
    )


def _gpu(device: Device, size: ModelSize) -> tuple[float, ...]:
    compute_ms = 2 * size.num_parameters / (device.tflops * _MFU * 1e9)
    return (
        _WEIGHT_INEFFICIENCY * size.weight_bytes / (device.gbps * 1e6) + _HOST_MS,
        0.2 * compute_ms + _HOST_MS_PER_ROW,
        0.8 * compute_ms,
        _KV_INEFFICIENCY * 1e3 * size.kv_bytes_per_token / (device.gbps * 1e6),
        _attention_ms(size, device.tflops * _MFU * 1e3),
    )


def _attention_ms(size: ModelSize, gflops: float) -> float:
    """Milliseconds per 1e6 attention pairs; queries are about three times as wide as keys."""
    width_times_layers = 3 * size.kv_bytes_per_token / (2 * size.precision.kv_value_bytes)
    return 4 * width_times_layers * 1e6 / (gflops * 1e6)
