"""Step times that are assumed before a step has run: a roofline, and how far to trust it.

Where several ranks share a model, each computes with its own part of the weights, and twice a
layer all ranks sum what they have, around a ring:

    sum(T) = latency + T * hidden * bytes * 2 (R - 1) / R / bandwidth of a link

No such sum, and no step of a datasheet's GPU, has been measured here: the factors below
say how far each may be off.
"""

from typing import Final

from msgspec import structs

from paceline_engine.hardware.devices import Device
from paceline_engine.hardware.model_size import ModelSize
from paceline_engine.hardware.roofline import roofline
from paceline_tuner.telemetry import ModelFit

KNOWN_FACTOR: Final = 1.5
"""9 of 10 times the true step time lies within the predicted one times or over this factor."""
GUESS_FACTOR: Final = 3.0
"""The same for a CPU, and for a GPU of which only the memory is known."""
RANKS_FACTOR: Final = 2.0
"""The same for several ranks."""
REMEMBERED_FACTOR: Final = 1.15
"""The same for coefficients that were fitted on such a pod."""

_SUMS_PER_LAYER: Final = 2
_SETTLED_Q_R: Final = 1.1
"""What a fit settles at; the cold 1.3 lasts for the first 200 steps only."""


def trusted_factor(device: Device, ranks: int) -> float:
    """Return how far a true step time may be from the assumed one, times or over."""
    factor = KNOWN_FACTOR if device.is_known else GUESS_FACTOR
    return factor if ranks == 1 else max(factor, RANKS_FACTOR)


def assumed_times(device: Device, size: ModelSize) -> ModelFit:
    """Predict step times of this model on this device, as a fit that has settled."""
    model = roofline(device, size)
    return ModelFit(
        theta=model.theta,
        prior=model.theta,
        knee=model.knee,
        correction=(),
        fast=1.0,
        q_r=_SETTLED_Q_R,
        samples=0,
        mape=0.0,
        valid=True,
    )


def times_of_ranks(device: Device, whole: ModelSize, part: ModelSize, ranks: int) -> ModelFit:
    """Predict step times of a model that so many devices share; on a CPU they share its cores."""
    alone = assumed_times(device, whole if device.is_cpu else part)
    if ranks == 1:
        return alone
    assert part.hidden_size is not None  # noqa: S101 - every reader of sizes gives both
    assert part.num_layers is not None  # noqa: S101 - as above
    link = device.link
    sums = _SUMS_PER_LAYER * part.num_layers
    token_bytes = part.hidden_size * part.precision.bytes_per_value * 2 * (ranks - 1) / ranks
    base_ms, token_ms, *rest = alone.theta
    theta = (
        base_ms + sums * link.latency_ms,
        token_ms + sums * token_bytes / (link.gbps * 1e6),
        *rest,
    )
    return structs.replace(alone, theta=theta, prior=theta)
