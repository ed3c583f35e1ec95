"""What share of the device's memory bandwidth and arithmetic the steps achieve. Pure.

By the step records and the size of the model:

    bytes       = weights (once a step) + keys and values of C (read) and of T (written)
    operations  = 2 * parameters * T  +  4 * (width * layers of the queries) * (C + A)

over the time of the steps, beside the bandwidth and the dense bf16 rate of the device's datasheet
(`paceline_engine.hardware.devices`). Keys and values that prompts read, embeddings, which are
looked up, and sampling are left out; the width of the queries is taken to be three times that of
the keys, as the roofline takes it.
"""

from dataclasses import dataclass

from paceline_engine.hardware.devices import device_named
from paceline_tuner.telemetry import EngineInfo
from paceline_tuner.window import Evidence

_QUERY_HEADS_A_KEY_HEAD = 3
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_RANKS = "tensor_parallel_size="


@dataclass(frozen=True, slots=True)
class Achieved:
    """What the steps moved and computed, while they ran."""

    gb_per_s: float
    """Weights, keys and values."""
    tflops: float
    device: str
    """As it calls itself."""
    bandwidth_share: float | None
    """Of the datasheet's bandwidth, all ranks together; None of a device without a datasheet."""
    arithmetic_share: float | None
    """Of the datasheet's dense bf16 rate; None as above."""


def achieved(evidence: Evidence) -> Achieved | None:
    """Reckon the window's steps; None where the pod does not say how large its model is."""
    info = evidence.info
    seconds = sum(step.wall_ms for step in evidence.steps) / 1e3
    if seconds <= 0 or info.weight_bytes <= 0 or info.num_parameters <= 0:
        return None
    num_bytes = operations = 0.0
    width = _query_width(info)
    for step in evidence.steps:
        tokens = step.decode + step.prefill
        num_bytes += info.weight_bytes + info.kv_bytes_per_token * (step.context + tokens)
        operations += 2.0 * info.num_parameters * tokens
        operations += 4.0 * width * (step.context + step.attention)
    gb_per_s, tflops = num_bytes / seconds / 1e9, operations / seconds / 1e12
    device, ranks = device_named(info.device), _ranks(info)
    return Achieved(
        gb_per_s=gb_per_s,
        tflops=tflops,
        device=info.device,
        bandwidth_share=gb_per_s / (ranks * device.gbps) if device.is_known else None,
        arithmetic_share=tflops / (ranks * device.tflops) if device.is_known else None,
    )


def _query_width(info: EngineInfo) -> float:
    """Width of the queries times layers, from the bytes of a token's keys and values."""
    per_value = 1 if "kv_cache_dtype=fp8" in info.features else _DTYPE_BYTES.get(info.dtype, 2)
    return _QUERY_HEADS_A_KEY_HEAD * info.kv_bytes_per_token / (2 * per_value)


def _ranks(info: EngineInfo) -> int:
    """Read how many devices share the model."""
    found = [each.removeprefix(_RANKS) for each in info.features if each.startswith(_RANKS)]
    return int(found[0]) if found and found[0].isdigit() else 1
