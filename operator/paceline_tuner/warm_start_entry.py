"""WarmStartEntry: what one pod was found to be good for, so that the next need not find out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import EngineInfo, ModelFit
from paceline_wire.step_cost import step_ms

_SAME = 0.05
_SAME_MODEL = 0.25  # fits of one engine waver so far where it seldom runs
_USUAL_STEPS = (  # tokens, context, attention
    (1, 500, 0),
    (16, 8_000, 0),
    (128, 64_000, 0),
    (264, 4_000, 32_768),
    (1032, 4_000, 524_288),
)
_REFRESH_S = 86_400.0
_NUM_TERMS = 5


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What two engines must agree on for one's step times to hold for the other."""

    model: str
    revision: str
    weight_bytes: int
    """Tells models of one name apart where there is no revision."""
    dtype: str
    engine_version: str
    device: str
    features: tuple[str, ...]

    @classmethod
    def of(cls, info: EngineInfo) -> "EngineKey | None":
        """Read from telemetry; None where a pod does not say what it is."""
        if not (info.name and info.device and info.engine_version):
            return None
        return cls(
            model=info.name,
            revision=info.revision,
            weight_bytes=info.weight_bytes,
            dtype=info.dtype,
            engine_version=info.engine_version,
            device=info.device,
            features=info.features,
        )


@dataclass(frozen=True, slots=True)
class WarmStartEntry:
    """The step model and the limits that kept one SLA under one key. Times are Unix seconds."""

    key: EngineKey
    sla: SLA
    theta: tuple[float, ...]
    """th0..th4, as in docs/runtime-api.md."""
    knee: int
    correction: tuple[float, ...]
    batch_size: int
    token_budget: int
    step_target_ms: float | None
    at: float
    is_certified: bool = False
    """Certified by counts at 95 % confidence; otherwise the limits kept the SLA for a window."""
    avoid_until: float = 0.0
    """A pod that started from these limits missed its SLA: not to be used before."""
    bin_tokens: int = 128
    """How wide a bin of `correction` is, as in docs/runtime-api.md."""

    @property
    def is_sound(self) -> bool:
        """The numbers are possible ones: nobody knows who wrote a stored entry."""
        figures = (*self.theta, *self.correction, self.at, self.avoid_until)
        target = self.step_target_ms
        return (
            len(self.theta) == _NUM_TERMS
            and all(math.isfinite(value) and value >= 0 for value in figures)
            and self.theta[0] + self.theta[1] > 0
            and min(self.knee, self.batch_size, self.token_budget, self.bin_tokens) >= 1
            and (target is None or (math.isfinite(target) and target > 0))
        )

    def as_fit(self) -> ModelFit:
        """The step model at its usual level, to compare another engine's steps with."""
        return ModelFit(
            theta=self.theta,
            prior=self.theta,
            knee=self.knee,
            correction=self.correction,
            bin_tokens=self.bin_tokens,
            fast=1.0,
            q_r=1.0,
            samples=0,
            mape=0.0,
            valid=True,
        )

    def is_like(self, other: "WarmStartEntry") -> bool:
        """Both say the same about the same engine, as far as a new pod would notice."""
        mine, others = (
            (one.batch_size, one.token_budget, one.step_target_ms or 0.0) for one in (self, other)
        )
        return _are_close(mine, others, _SAME) and _are_close(
            self.usual_ms(), other.usual_ms(), _SAME_MODEL
        )

    def usual_ms(self) -> tuple[float, ...]:
        """Predicted milliseconds of steps of the usual kinds, to compare two models by.

        Coefficients alone would not do: two fits may share the same time out differently.
        """
        return tuple(
            step_ms(self.theta, self.knee, tokens, context, attention)
            for tokens, context, attention in _USUAL_STEPS
        )

    def replaces(self, old: "WarmStartEntry") -> bool:
        """Whether this is news; what is no news is not written again."""
        age_s = self.at - old.at
        if self.at < old.avoid_until and not self.is_certified and self.is_no_smaller(old):
            return False  # a quiet window does not clear limits that failed
        if old.is_certified and not self.is_certified and age_s < _REFRESH_S:
            return False
        is_proof = self.is_certified and (not old.is_certified or old.avoid_until > self.at)
        return is_proof or age_s >= _REFRESH_S or not self.is_like(old)

    def is_no_smaller(self, other: "WarmStartEntry") -> bool:
        """The limits, taken alone, are about those of the other or above them."""
        least_batch, least_budget = other.batch_size * (1 - _SAME), other.token_budget * (1 - _SAME)
        return self.batch_size >= least_batch and self.token_budget >= least_budget


def _are_close(mine: Sequence[float], others: Sequence[float], tolerance: float) -> bool:
    return all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(mine, others, strict=True))


def is_as_strict(kept: SLA, declared: SLA) -> bool:
    """Return whether the SLA `kept` is at least as strict as the SLA `declared`."""
    lengths = (*kept.shortest_prompts, *declared.shortest_prompts)
    pairs = (
        *((kept.ttft_ms(length), declared.ttft_ms(length)) for length in lengths),
        (kept.tpot_p99_ms, declared.tpot_p99_ms),
        (kept.itl_p99_ms, declared.itl_p99_ms),
        (kept.e2e_p99_ms, declared.e2e_p99_ms),
    )
    return kept.objective >= declared.objective and all(
        wanted is None or (had is not None and had <= wanted) for had, wanted in pairs
    )
