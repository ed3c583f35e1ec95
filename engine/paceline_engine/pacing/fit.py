"""Least squares on relative error, pulled to the prior, inside a box. A few hundred samples.

Unknowns are multiples of the prior, so that one pull and one box suit every coefficient:

    minimise  sum_i (sum_j z_ij*u_j - 1)^2 + sum_j w_j*(u_j - 1)^2    low_j <= u_j <= high_j
    with      z_ij = prior_j * x_ij / wall_i,   theta_j = u_j * prior_j

Samples are the newest few of each kind. A loop that has settled runs the same step over and over: a
plain ring would then forget every other size, and the coefficients would drift along the direction
that nothing excites.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from paceline_engine.pacing.prior import Prior
from paceline_wire import MeasuredStep
from paceline_wire.step_cost import NUM_TERMS, StepModel, step_model, step_ms, step_terms

_FEATURES_AND_MS = attrgetter("decode", "prefill", "context", "attention", "wall_ms")
_PER_BUCKET = 24
_CONTEXT_PER_BUCKET = 25_000
_HOLDOUT = 10  # one of ten, the newest
_PRIOR_WORTH = 3.0  # samples
_PRIOR_FLOOR = 1e-3  # keeps a term that was never excited at its prior
_MAX_SWEEPS = 300
_MIN_SHARE = 0.05  # of the time: a smaller term may sit at its bound
_MAX_AT_BOUND = 0.2  # of the coefficients

Array = npt.NDArray[np.float64]


class SampleStore:
    """Buckets by size, context and whether prefill ran."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        """Start without samples."""
        self._buckets: dict[tuple[int, int, bool], deque[MeasuredStep]] = {}

    def add(self, sample: MeasuredStep) -> None:
        """Keep the sample, and drop the oldest of its bucket."""
        key = (
            math.floor(2 * math.log2(sample.tokens)),
            sample.context // _CONTEXT_PER_BUCKET,
            sample.prefill > 0,
        )
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = deque(maxlen=_PER_BUCKET)
        bucket.append(sample)

    def split(self) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
        """Samples to fit from, and the newest tenth of each bucket to judge by."""
        training: list[MeasuredStep] = []
        holdout: list[MeasuredStep] = []
        for bucket in self._buckets.values():
            samples = list(bucket)
            kept = len(samples) - len(samples) // _HOLDOUT
            training += samples[:kept]
            holdout += samples[kept:]
        return training, holdout

    def clear(self) -> None:
        """Forget everything: the engine's steps have changed."""
        self._buckets.clear()


@dataclass(frozen=True, slots=True)
class Fit:
    """One fit, and whether to believe it."""

    model: StepModel
    prior: StepModel
    """As scaled to the hardware."""
    holdout_mape: float
    refusal: str
    """Why not to use it; empty when it may be used."""


def fit(training: Sequence[MeasuredStep], holdout: Sequence[MeasuredStep], prior: Prior) -> Fit:
    """Fit the coefficients to `training`, judge them by `holdout`."""
    if prior.is_guess:
        prior = replace(prior, model=prior.model.scaled(scale_of(training, prior.model)))
    z = _relative(training, prior.model)
    multiples = _solve(z, prior)
    theta = multiples * np.array(prior.model.theta)
    model = step_model([float(value) for value in theta], prior.model.knee)
    mape = _spread(holdout or training, model)
    return Fit(model, prior.model, mape, _refusal(multiples, z, prior, mape))


def scale_of(samples: Iterable[MeasuredStep], model: StepModel) -> float:
    """Return how many times slower the steps were than `model` predicts."""
    return float(np.median(_ratios(samples, model)))


def _ratios(samples: Iterable[MeasuredStep], model: StepModel) -> Array:
    tokens, context, attention, wall_ms = _columns(samples)
    ratios: Array = wall_ms / step_ms(model.theta, model.knee, tokens, context, attention)
    return ratios


def _spread(samples: Sequence[MeasuredStep], model: StepModel) -> float:
    """Mean relative error after the median is divided out: a slow hour is not a wrong model."""
    ratios = _ratios(samples, model)
    return float(np.mean(np.abs(ratios / np.median(ratios) - 1.0)))


def _relative(samples: Sequence[MeasuredStep], model: StepModel) -> Array:
    tokens, context, attention, wall_ms = _columns(samples)
    terms = np.broadcast_arrays(*step_terms(model.knee, tokens, context, attention))
    relative: Array = np.stack(terms, axis=1) * np.array(model.theta) / wall_ms[:, None]
    return relative


def _columns(samples: Iterable[MeasuredStep]) -> tuple[Array, Array, Array, Array]:
    """T, C, A and ms: whole columns at once, as hundreds of samples one by one hold up a step."""
    columns = list(zip(*map(_FEATURES_AND_MS, samples), strict=True))
    decode, prefill, context, attention, ms = np.array(columns, dtype=np.float64)
    return decode + prefill, context, attention, ms


def _solve(z: Array, prior: Prior) -> Array:
    pull = _PRIOR_WORTH * np.mean(z * z, axis=0) + _PRIOR_FLOOR
    gram = z.T @ z + np.diag(pull)
    target = z.sum(axis=0) + pull
    low, high = np.array(prior.low), np.array(prior.high)
    free: Array = np.linalg.solve(gram, target)
    if bool(np.all((free >= low) & (free <= high))):
        return free
    return _descend(gram, target, low, high, start=np.clip(free, low, high))


def _descend(gram: Array, target: Array, low: Array, high: Array, start: Array) -> Array:
    """Coordinate descent: exact for a convex quadratic in a box."""
    u = start.copy()
    # Python floats: NumPy's overhead per element would be most of a fit's time.
    rows = list(
        zip(
            range(NUM_TERMS),
            gram,
            np.diag(gram).tolist(),
            target.tolist(),
            low.tolist(),
            high.tolist(),
            strict=True,
        )
    )
    values: list[float] = u.tolist()
    for _ in range(_MAX_SWEEPS):
        most = 0.0
        for j, row, diagonal, wanted, least, greatest in rows:
            before = values[j]
            rest = wanted - float(row.dot(u)) + diagonal * before
            value = u[j] = values[j] = min(max(rest / diagonal, least), greatest)
            most = max(most, abs(value - before))
        if most < 1e-6:  # noqa: PLR2004 - far below any noise
            break
    return u


def _refusal(multiples: Array, z: Array, prior: Prior, mape: float) -> str:
    share = np.mean(z, axis=0) * multiples
    share = share / np.sum(share)
    at_bound = (multiples <= np.array(prior.low)) | (multiples >= np.array(prior.high))
    stuck = int(np.sum(at_bound & (share > _MIN_SHARE)))
    if not np.all(np.isfinite(multiples)):
        return "the fit is not finite"
    if stuck > _MAX_AT_BOUND * NUM_TERMS:
        return f"{stuck} of {NUM_TERMS} coefficients are at their bounds"
    if mape > prior.max_mape:
        return f"holdout error {mape:.0%} is above {prior.max_mape:.0%}"
    return ""
