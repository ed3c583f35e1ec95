"""Devices by their datasheets: memory, bandwidth, arithmetic, and the links between them."""

from dataclasses import dataclass, replace
from typing import Final

GIB: Final = 1 << 30
BLOCK_TOKENS: Final = 16
"""Tokens in one KV block, unless a setting says otherwise."""
CPU_KV_BYTES: Final = 1 << 30
"""The KV cache on a CPU, unless a setting says otherwise: a laptop has to do other things too."""
CPU_MAX_MODEL_LEN: Final = 2048
"""The longest sequence on a CPU, unless a setting says otherwise."""


@dataclass(frozen=True, slots=True)
class Interconnect:
    """How devices that share a model reach each other."""

    gbps: float
    """In one direction."""
    latency_ms: float
    """Assumed: of one sum over all devices, however few its bytes."""


@dataclass(frozen=True, slots=True)
class Device:
    """What one engine runs on."""

    name: str
    memory_bytes: int | None
    """As the driver reports it; None on a CPU, and where it is unknown."""
    gbps: float
    """Memory bandwidth, GB/s."""
    tflops: float
    """Dense bf16, TFLOP/s."""
    link: Interconnect
    is_known: bool = True
    """The figures are of its datasheet, not guessed."""

    @property
    def is_cpu(self) -> bool:
        """Weights and cache lie in the host's memory."""
        return self.name.lower().startswith("cpu")

    @property
    def min_prefill(self) -> int:
        """Prefill tokens that every step may hold, so that prompts never starve."""
        return 16 if self.is_cpu else 64


_BUS: Final = Interconnect(32.0, 0.04)
_SLOW_BUS: Final = Interconnect(16.0, 0.04)
_LOOPBACK: Final = Interconnect(1.0, 0.2)

# One laptop socket, shared.
CPU: Final = Device("cpu", None, 10.0, 0.06, _LOOPBACK, is_known=False)
GPUS: Final = {
    name: Device(name, int(gib * GIB), gbps, tflops, link)
    for name, gib, gbps, tflops, link in (
        ("b200", 178.0, 8000.0, 2250.0, Interconnect(900.0, 0.02)),
        ("h200", 139.0, 4800.0, 989.0, Interconnect(450.0, 0.02)),
        ("h100", 79.0, 3350.0, 989.0, Interconnect(450.0, 0.02)),
        ("a100", 79.0, 2039.0, 312.0, Interconnect(300.0, 0.02)),
        ("l40s", 44.0, 864.0, 362.0, _BUS),
        ("a10", 22.0, 600.0, 125.0, _BUS),
        ("l4", 22.0, 300.0, 121.0, _BUS),
        ("t4", 14.5, 320.0, 65.0, _SLOW_BUS),
        ("4090", 23.5, 1008.0, 165.0, _BUS),
    )
}
"""By name; the order tells a100 from a10 and l40s from l4."""


def device_named(name: str, memory_bytes: int | None = None) -> Device:
    """Find the device that calls itself `name` (`cuda:NVIDIA H100 80GB HBM3`).

    An unknown name gets the figures of a middling GPU.
    """
    if name.lower().startswith("cpu"):
        return CPU
    if key := known_gpu(name):
        return replace(GPUS[key], name=name, memory_bytes=memory_bytes or GPUS[key].memory_bytes)
    return Device(name, memory_bytes, 1000.0, 150.0, _SLOW_BUS, is_known=False)


def is_same_device(name: str, device: Device) -> bool:
    """Whether a device that calls itself `name` is such a one."""
    if device.is_cpu:
        return name.lower().startswith("cpu")
    mine, theirs = (known_gpu(one) or one.lower() for one in (device.name, name))
    return mine == theirs


def known_gpu(name: str) -> str | None:
    """Find the key of a GPU in what it calls itself."""
    return next((key for key in GPUS if key in name.lower()), None)
