"""Prior: what is assumed of the step time before a step has run, and how far a fit may leave it."""

import math
from dataclasses import dataclass, replace

from paceline_engine.hardware.devices import Device, device_named
from paceline_engine.hardware.model_size import ModelSize, Precision
from paceline_engine.hardware.roofline import roofline
from paceline_wire import ModelInfo
from paceline_wire.step_cost import NUM_TERMS, StepModel, step_model, step_ms

_SILENT = 0.01  # of the prior: a smaller coefficient of a seed was not excited by its steps
_REVIVED = 0.1  # of the prior: a multiple of nothing would stay nothing


@dataclass(frozen=True, slots=True)
class Prior:
    """Where the fit starts, how far it may go, and how much noise is normal there."""

    model: StepModel
    low: tuple[float, ...]
    """The least of each coefficient, as a multiple of the prior."""
    high: tuple[float, ...]
    is_guess: bool
    """Only the form is known; the scale is taken from the first clean steps."""
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
    device = device_named(info.device)
    model = roofline(device, _size(info))
    return _cpu_prior(model, device) if device.is_cpu else _gpu_prior(model, device)


def seeded(prior: Prior, seed: StepModel) -> Prior:
    """Pull to a model that was fitted elsewhere, within the bounds of `prior`."""
    at_knee = step_ms(seed.theta, seed.knee, seed.knee, 0, 0)
    scale = at_knee / step_ms(prior.model.theta, prior.model.knee, seed.knee, 0, 0)
    anchor = [
        _REVIVED * scale * assumed if given < _SILENT * scale * assumed else given
        for given, assumed in zip(seed.theta, prior.model.theta, strict=True)
    ]
    return replace(prior, model=step_model(anchor, seed.knee), is_guess=False)


def unbounded(prior: Prior) -> Prior:
    """Free the coefficients: steps that were measured on purpose need not be near a guess."""
    return replace(prior, low=(0.0,) * NUM_TERMS, high=(math.inf,) * NUM_TERMS)


def _cpu_prior(model: StepModel, device: Device) -> Prior:
    # CPUs differ by 30 times and share their cores: only the form is believed, not its scale.
    return Prior(
        model,
        low=(0.05, 0.05, 0.0, 0.0, 0.0),
        high=(10.0, 10.0, 10.0, 50.0, 200.0),
        is_guess=True,
        max_mape=0.5,
        max_q_r=3.0,
        min_prefill=device.min_prefill,
        bin_tokens=4,
    )


def _gpu_prior(model: StepModel, device: Device) -> Prior:
    known = device.is_known
    # Launch and row costs are the host's, which no datasheet knows: those two terms range wider.
    return Prior(
        model,
        low=(0.1, 0.02, 0.0, 0.3, 0.0) if known else (0.05, 0.02, 0.0, 0.05, 0.0),
        high=(10.0, 20.0, 20.0, 20.0, 50.0) if known else (20.0, 20.0, 40.0, 40.0, 100.0),
        is_guess=not known,
        max_mape=0.15,
        max_q_r=1.5,
        min_prefill=device.min_prefill,
        has_tiles=True,
    )


def _size(info: ModelInfo) -> ModelSize:
    precision = Precision(
        4 if info.dtype.endswith("32") else 2,
        has_fp8_kv="kv_cache_dtype=fp8" in info.features,
    )
    return ModelSize(info.num_parameters, info.weight_bytes, info.kv_bytes_per_token, precision)
