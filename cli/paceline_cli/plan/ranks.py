"""What it costs that several ranks share a model: after attention and MLP each layer adds parts up.

A rank computes with its own part of the weights, and twice a layer all ranks sum what they have,
around a ring:

    sum(T) = latency + T * hidden * bytes * 2 (R - 1) / R / bandwidth of a link

No such sum has been measured here: bandwidths are of datasheets, latencies are assumed, and the
factor says how little they are to be trusted.
"""

from dataclasses import dataclass
from typing import Final

from msgspec import structs

from paceline_cli.plan.device import Device, known_gpu, prior
from paceline_cli.plan.model_size import ModelSize
from paceline_tuner.telemetry import ModelFit

RANKS_FACTOR: Final = 2.0
"""9 of 10 times the true step time of several ranks lies within times or over this."""

_SUMS_PER_LAYER: Final = 2


@dataclass(frozen=True, slots=True)
class Link:
    """How ranks reach each other."""

    gbps: float
    """In one direction."""
    latency_ms: float
    """Of one sum over all ranks, however few its bytes."""


_NVLINK_MS, _PCIE_MS, _LOOPBACK_MS = 0.02, 0.04, 0.2
_LINKS: Final = {
    "b200": Link(900.0, _NVLINK_MS),
    "h200": Link(450.0, _NVLINK_MS),
    "h100": Link(450.0, _NVLINK_MS),
    "a100": Link(300.0, _NVLINK_MS),
    "l40s": Link(32.0, _PCIE_MS),
    "a10": Link(32.0, _PCIE_MS),
    "l4": Link(32.0, _PCIE_MS),
    "t4": Link(16.0, _PCIE_MS),
    "4090": Link(32.0, _PCIE_MS),
}
_UNKNOWN: Final = Link(16.0, _PCIE_MS)
_LOOPBACK: Final = Link(1.0, _LOOPBACK_MS)


def link_of(device: Device) -> Link:
    """Between such devices: NVLink where the datasheet has it, else the bus, or the loopback."""
    return _LOOPBACK if device.is_cpu else _LINKS.get(known_gpu(device.name) or "", _UNKNOWN)


def ranks_prior(device: Device, whole: ModelSize, part: ModelSize, ranks: int) -> ModelFit:
    """Predict step times of a model that so many devices share; on a CPU they share its cores."""
    alone = prior(device, whole if device.is_cpu else part)
    if ranks == 1:
        return alone
    assert part.hidden_size is not None  # noqa: S101 - every reader of sizes tells both
    assert part.num_layers is not None  # noqa: S101 - as above
    link = link_of(device)
    sums = _SUMS_PER_LAYER * part.num_layers
    token_bytes = part.hidden_size * part.precision.bytes_per_value * 2 * (ranks - 1) / ranks
    base_ms, token_ms, *rest = alone.theta
    theta = (
        base_ms + sums * link.latency_ms,
        token_ms + sums * token_bytes / (link.gbps * 1e6),
        *rest,
    )
    return structs.replace(alone, theta=theta, prior=theta)
