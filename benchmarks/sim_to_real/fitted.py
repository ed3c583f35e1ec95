"""A `Hardware` from an engine's own step records: a table of step time, costs and noise. Pure.

    ms = table(T) + context * C + pair * A + row * (d + 1 if p) + mixed if p     T = d + p

The table is straight between knots and never falls. All of it is one least-squares problem on
relative errors with no coefficient below zero; steps far off (another process had the core) weigh
less. What is left over is the noise: its spread, how it goes on from step to step, and its spikes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from paceline_engine.hardware.model_size import ModelSize, Precision
from paceline_sim.hardware import MAX_STEP_TOKENS, Hardware, Noise, StepCosts
from paceline_tuner.telemetry import CapacityValues, EngineInfo, Step

Floats = npt.NDArray[np.float64]
_KNOTS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
LEAST_STEPS = 100
_ROUNDS = 8
_HUBER = 1.5
_SWEEPS = 500
_LEAST_BASE = 0.01  # of the shortest step
_SPIKE_SIGMAS = 4.0
_LEAST_SPIKE = 1.4


class ProfileError(ValueError):
    """The records do not show what a step costs."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The fitted device, and how well it fits."""

    hardware: Hardware
    steps: int
    error: float
    """Mean absolute relative error on the steps that it was fitted to."""


def profiled(steps: Sequence[Step], info: EngineInfo, capacity: CapacityValues) -> Profile:
    """Fit a device. Raises ProfileError."""
    clean = [s for s in steps if s.clean and s.wall_ms > 0 and s.decode + s.prefill > 0]
    if len(clean) < LEAST_STEPS:
        raise ProfileError(f"at least {LEAST_STEPS} clean steps are needed, got {len(clean)}")
    knots = _knots(clean)
    columns = _columns(clean, knots)
    wall = np.array([s.wall_ms for s in clean])
    weights, coefficients = np.ones(len(clean)), np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        relative = columns / wall[:, None]
        coefficients = _nonnegative(relative, np.ones(len(clean)), weights)
        # Whatever the records say, no step takes no time.
        coefficients[0] = max(coefficients[0], _LEAST_BASE * float(wall.min()))
        off = np.abs(np.log(np.maximum(relative @ coefficients, 1e-9)))
        scale = _HUBER * max(1.4826 * float(np.median(off)), 1e-3)
        weights = np.minimum(1.0, scale / np.maximum(off, 1e-9))
    fitted = columns @ coefficients
    centre = float(np.median(wall / fitted))
    coefficients, fitted = coefficients * centre, fitted * centre
    return Profile(
        hardware=_hardware(
            coefficients, knots, _noise(clean, np.log(wall / fitted)), info, capacity
        ),
        steps=len(clean),
        error=float(np.mean(np.abs(fitted / wall - 1))),
    )


def _knots(steps: Sequence[Step]) -> tuple[int, ...]:
    """Choose the knots that the steps reach, and their smallest and largest totals."""
    tokens = np.array([s.decode + s.prefill for s in steps])
    low, high = int(tokens.min()), int(tokens.max())
    inner = [knot for knot in _KNOTS if low < knot < high]
    kept = [low]
    for knot in inner:
        # A stretch that few steps fall into says nothing of its own slope.
        if np.count_nonzero((tokens > kept[-1]) & (tokens <= knot)) >= LEAST_STEPS // 20:
            kept.append(knot)
    return (*kept, high) if high > low else (low,)


def _columns(steps: Sequence[Step], knots: Sequence[int]) -> Floats:
    """What the coefficients multiply [steps, knots + 4]: base, rises, context, pair, row, mixed."""
    tokens = np.array([s.decode + s.prefill for s in steps], np.float64)
    mixed = np.array([s.prefill > 0 for s in steps], np.float64)
    rows = np.array([s.decode for s in steps], np.float64) + mixed
    return np.column_stack(
        [
            np.ones_like(tokens),
            *(np.clip((tokens - low) / (high - low), 0.0, 1.0) for low, high in pairwise(knots)),
            np.array([s.context for s in steps], np.float64) / 1e3,
            np.array([s.attention for s in steps], np.float64) / 1e6,
            rows,
            mixed,
        ]
    )


def _nonnegative(columns: Floats, target: Floats, weights: Floats) -> Floats:
    """Least squares with no coefficient below zero, by coordinate descent."""
    gram = (columns * weights[:, None]).T @ columns
    gram += np.diag(1e-9 * np.diag(gram) + 1e-12)
    aim = (columns * weights[:, None]).T @ target
    found = np.zeros(len(aim))
    for _ in range(_SWEEPS):
        before = found.copy()
        for j in range(len(aim)):
            rest = aim[j] - gram[j] @ found + gram[j, j] * found[j]
            found[j] = max(rest / gram[j, j], 0.0)
        if np.max(np.abs(found - before)) < 1e-9 * max(float(found.max()), 1e-9):
            break
    return found


def _noise(steps: Sequence[Step], residual: Floats) -> Noise:
    """Read spread, correlation and spikes off the logarithms of the residuals."""
    sigma = 1.4826 * float(np.median(np.abs(residual)))
    edge = max(_SPIKE_SIGMAS * sigma, math.log(_LEAST_SPIKE))
    is_spike = residual > edge
    calm = np.clip(residual, -edge, edge)
    follows = np.array([b.seq == a.seq + 1 for a, b in pairwise(steps)])
    first, second = calm[:-1][follows], calm[1:][follows]
    power = float(np.mean(calm * calm))
    correlation = float(np.mean(first * second)) / power if len(first) and power > 0 else 0.0
    spikes = np.exp(residual[is_spike])
    return Noise(
        sigma=sigma,
        correlation=min(max(correlation, 0.0), 0.95),
        spike_chance=float(is_spike.mean()),
        spike=(float(np.quantile(spikes, 0.1)), float(np.quantile(spikes, 0.9)))
        if len(spikes)
        else (1.0, 1.0),
    )


def _hardware(
    coefficients: Floats,
    knots: Sequence[int],
    noise: Noise,
    info: EngineInfo,
    capacity: CapacityValues,
) -> Hardware:
    heights = np.cumsum(coefficients[: len(knots)])
    context, pair, row, mixed = coefficients[len(knots) :].tolist()
    return Hardware(
        name=info.name,
        device=info.device,
        size=ModelSize(
            info.num_parameters,
            info.weight_bytes,
            info.kv_bytes_per_token,
            Precision(4 if info.dtype.endswith("32") else 2),
        ),
        dtype=info.dtype,
        num_kv_tokens=capacity.num_blocks * capacity.block_size,
        dense_ms=_table(knots, heights),
        costs=StepCosts(
            context_ms=context / 1e3,
            few_rows=0.0,
            rows_scale=1.0,
            long_context=0.0,
            context_scale=1.0,
            pair_ms=pair / 1e6,
            query_tile=1,
            row_ms=row,
            mixed_ms=mixed,
            graph_grid=1,
        ),
        noise=noise,
    )


def _table(knots: Sequence[int], heights: Floats) -> Floats:
    """Straight between knots, level before the first; beyond the last by the mean slope."""
    tokens = np.arange(MAX_STEP_TOKENS + 1, dtype=np.float64)
    slope = (heights[-1] - heights[0]) / max(knots[-1] - knots[0], 1)
    beyond = np.maximum(tokens - knots[-1], 0.0) * slope
    return np.asarray(np.interp(tokens, knots, heights) + beyond, np.float64)
