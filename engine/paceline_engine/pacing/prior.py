"""What is assumed of the step time before a step has run: a roofline by device, or a guess."""

import math
from dataclasses import dataclass, replace

from paceline_wire import ModelInfo
from paceline_wire.step_cost import NUM_TERMS, StepModel, step_model, step_ms

_DEVICES = {  # datasheet: memory bandwidth GB/s, dense bf16 TFLOP/s
    "b200": (8000.0, 2250.0),
    "h200": (4800.0, 989.0),
    "h100": (3350.0, 989.0),
    "a100": (2000.0, 312.0),
    "l40s": (864.0, 362.0),
    "a10": (600.0, 125.0),
    "l4": (300.0, 121.0),
    "t4": (320.0, 65.0),
    "4090": (1008.0, 165.0),
}
_UNKNOWN_GPU = (1000.0, 150.0)
_WEIGHT_INEFFICIENCY = 1.36  # measured time over datasheet time, reading weights
_KV_INEFFICIENCY = 1.9  # the same, reading keys and values
_MFU = 0.5  # of the datasheet's FLOP/s, in large matrix products
_HOST_MS = 3.0  # an eager step's launches, scheduling and sampling
_HOST_MS_PER_ROW = 0.01
_CPU_GBPS = 10.0  # one laptop socket, shared
_CPU_GFLOPS = 60.0
_SILENT = 0.01  # of the prior: a smaller coefficient of a seed says nothing of its term
_REVIVED = 0.1  # of the prior: a multiple of nothing would stay nothing


@dataclass(frozen=True, slots=True)
class Prior:
    """Where the fit starts, how far it may go, and how much noise is normal there."""

    model: StepModel
    low: tuple[float, ...]
    """The least of each coefficient, as a multiple of the prior."""
    high: tuple[float, ...]
    is_guess: bool
    """The scale is unknown: it is taken from the first clean steps."""
    max_mape: float
    """A fit with a larger holdout error is not trusted."""
    max_q_r: float
    min_prefill: int
    """Prefill tokens that every step may hold, so that prompts never starve."""
    has_tiles: bool = False
    """Matrix products run in tiles of 128 tokens, as on every GPU in the table."""
    bin_tokens: int = 128
    """Sizes of steps that share a correction: a tile's, or the rows that a CPU's kernels take."""


def prior_for(info: ModelInfo) -> Prior:
    """Derive the prior from the model's size and the device's name."""
    return _cpu_prior(info) if info.device.startswith("cpu") else _gpu_prior(info)


def seeded(prior: Prior, seed: StepModel) -> Prior:
    """Pull to a model that was fitted elsewhere, as far as `prior` would let a fit go."""
    at_knee = step_ms(seed.theta, seed.knee, seed.knee, 0, 0)
    scale = at_knee / step_ms(prior.model.theta, prior.model.knee, seed.knee, 0, 0)
    anchor = [
        _REVIVED * scale * assumed if told < _SILENT * scale * assumed else told
        for told, assumed in zip(seed.theta, prior.model.theta, strict=True)
    ]
    return replace(prior, model=step_model(anchor, seed.knee), is_guess=False)


def unbounded(prior: Prior) -> Prior:
    """The same start, free to go anywhere: what is measured on purpose need not be near a guess."""
    return replace(prior, low=(0.0,) * NUM_TERMS, high=(math.inf,) * NUM_TERMS)


def _cpu_prior(info: ModelInfo) -> Prior:
    weights_ms = info.weight_bytes / (_CPU_GBPS * 1e6)
    token_ms = 2 * info.num_parameters / (_CPU_GFLOPS * 1e6)
    context_ms = 1e3 * info.kv_bytes_per_token / (_CPU_GBPS * 1e6)
    model = StepModel(
        (weights_ms, token_ms, 0.1 * token_ms, context_ms, _attention_ms(info, _CPU_GFLOPS))
    )
    # CPUs differ by 30 times and share their cores: only the form is believed, not its scale.
    return Prior(
        model,
        low=(0.05, 0.05, 0.0, 0.0, 0.0),
        high=(10.0, 10.0, 10.0, 50.0, 200.0),
        is_guess=True,
        max_mape=0.5,
        max_q_r=3.0,
        min_prefill=16,
        bin_tokens=4,
    )


def _gpu_prior(info: ModelInfo) -> Prior:
    name = info.device.lower()
    known = next((spec for key, spec in _DEVICES.items() if key in name), None)
    gbps, tflops = known or _UNKNOWN_GPU
    weights_ms = _WEIGHT_INEFFICIENCY * info.weight_bytes / (gbps * 1e6)
    compute_ms = 2 * info.num_parameters / (tflops * _MFU * 1e9)
    context_ms = _KV_INEFFICIENCY * 1e3 * info.kv_bytes_per_token / (gbps * 1e6)
    model = StepModel(
        (
            weights_ms + _HOST_MS,
            0.2 * compute_ms + _HOST_MS_PER_ROW,
            0.8 * compute_ms,
            context_ms,
            _attention_ms(info, tflops * _MFU * 1e3),
        )
    )
    # Launch and row costs are the host's, which no datasheet knows: those two terms range wider.
    return Prior(
        model,
        low=(0.1, 0.02, 0.0, 0.3, 0.0) if known else (0.05, 0.02, 0.0, 0.05, 0.0),
        high=(10.0, 20.0, 20.0, 20.0, 50.0) if known else (20.0, 20.0, 40.0, 40.0, 100.0),
        is_guess=known is None,
        max_mape=0.15,
        max_q_r=1.5,
        min_prefill=64,
        has_tiles=True,
    )


def _attention_ms(info: ModelInfo, gflops: float) -> float:
    """Milliseconds per 1e6 attention pairs; keys and values hold hidden * layers elements."""
    # With grouped queries the queries are about three times as wide as the keys.
    width_times_layers = 3 * info.kv_bytes_per_token / (2 * _kv_value_bytes(info))
    return 4 * width_times_layers * 1e6 / (gflops * 1e6)


def _kv_value_bytes(info: ModelInfo) -> int:
    if "kv_cache_dtype=fp8" in info.features:
        return 1
    return 4 if info.dtype.endswith("32") else 2
