"""Step times that follow from datasheet and model size: a roofline in the form of the step model.

th0   weights / bandwidth (and the host's launches on a GPU)
th1   the host's work for a row, and a fifth of a token's arithmetic
th2   the rest of a token's arithmetic, which counts above the knee
th3   keys and values of a token / bandwidth
th4   four operations for each query-key pair and width
"""

from paceline_engine.hardware.devices import Device
from paceline_engine.hardware.model_size import ModelSize
from paceline_wire.step_cost import StepModel

_WEIGHT_INEFFICIENCY = 1.36  # measured time over datasheet time, reading weights
_KV_INEFFICIENCY = 1.9  # the same, reading keys and values
_MFU = 0.5  # of the datasheet's FLOP/s, in large matrix products
_HOST_MS = 3.0  # an eager step's launches, scheduling and sampling
_HOST_MS_PER_ROW = 0.01


def roofline(device: Device, size: ModelSize) -> StepModel:
    """Predict the steps of a model of this size on this device."""
    return _cpu(device, size) if device.is_cpu else _gpu(device, size)


def _cpu(device: Device, size: ModelSize) -> StepModel:
    gflops = device.tflops * 1e3
    token_ms = 2 * size.num_parameters / (gflops * 1e6)
    return StepModel(
        (
            size.weight_bytes / (device.gbps * 1e6),
            token_ms,
            0.1 * token_ms,
            1e3 * size.kv_bytes_per_token / (device.gbps * 1e6),
            _attention_ms(size, gflops),
        )
    )


def _gpu(device: Device, size: ModelSize) -> StepModel:
    compute_ms = 2 * size.num_parameters / (device.tflops * _MFU * 1e9)
    return StepModel(
        (
            _WEIGHT_INEFFICIENCY * size.weight_bytes / (device.gbps * 1e6) + _HOST_MS,
            0.2 * compute_ms + _HOST_MS_PER_ROW,
            0.8 * compute_ms,
            _KV_INEFFICIENCY * 1e3 * size.kv_bytes_per_token / (device.gbps * 1e6),
            _attention_ms(size, device.tflops * _MFU * 1e3),
        )
    )


def _attention_ms(size: ModelSize, gflops: float) -> float:
    """Milliseconds per 1e6 attention pairs; keys and values hold hidden * layers elements."""
    # With grouped queries the queries are about three times as wide as the keys.
    width_times_layers = 3 * size.kv_bytes_per_token / (2 * size.precision.kv_value_bytes)
    return 4 * width_times_layers * 1e6 / (gflops * 1e6)
