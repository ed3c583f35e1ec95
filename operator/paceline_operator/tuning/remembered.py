"""Remembered: what one pod was found to be good for, so that the next need not find out."""

import math
from dataclasses import dataclass

from paceline_operator.telemetry import EngineInfo
from paceline_operator.tuning.model import SLA

_SAME = 0.05
_REFRESH_S = 86_400.0
_NUM_TERMS = 5


@dataclass(frozen=True, slots=True)
class Key:
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
    def of(cls, info: EngineInfo) -> "Key | None":
        """Read from telemetry; None of a pod that does not say what it is."""
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
class Remembered:
    """The step model and the limits that kept one SLA under one key. Times are Unix seconds."""

    key: Key
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
    """By counts at 95 % confidence; otherwise they kept the SLA for a whole window."""
    avoid_until: float = 0.0
    """A pod that started from these limits missed its SLA: not to be used before."""

    @property
    def is_sound(self) -> bool:
        """Numbers that can be; of a stored entry nobody knows who wrote it."""
        figures = (*self.theta, *self.correction, self.at, self.avoid_until)
        target = self.step_target_ms
        return (
            len(self.theta) == _NUM_TERMS
            and all(math.isfinite(value) and value >= 0 for value in figures)
            and self.theta[0] + self.theta[1] > 0
            and min(self.knee, self.batch_size, self.token_budget) >= 1
            and (target is None or (math.isfinite(target) and target > 0))
        )

    def is_like(self, other: "Remembered") -> bool:
        """Say the same of the same engine, as far as a new pod would notice."""
        mine, others = (
            (one.batch_size, one.token_budget, one.step_target_ms or 1.0, *one.theta)
            for one in (self, other)
        )
        return (self.step_target_ms is None) == (other.step_target_ms is None) and all(
            math.isclose(a, b, rel_tol=_SAME, abs_tol=1e-9)
            for a, b in zip(mine, others, strict=True)
        )

    def replaces(self, old: "Remembered") -> bool:
        """Whether this is news; what is no news is not written again."""
        age_s = self.at - old.at
        if self.at < old.avoid_until and not self.is_certified and self.is_no_smaller(old):
            return False  # a quiet window does not clear limits that failed
        if old.is_certified and not self.is_certified and age_s < _REFRESH_S:
            return False
        is_proof = self.is_certified and (not old.is_certified or old.avoid_until > self.at)
        return is_proof or age_s >= _REFRESH_S or not self.is_like(old)

    def is_no_smaller(self, other: "Remembered") -> bool:
        """The limits, taken alone, are about those of the other or above them."""
        least_batch, least_budget = other.batch_size * (1 - _SAME), other.token_budget * (1 - _SAME)
        return self.batch_size >= least_batch and self.token_budget >= least_budget


def is_as_strict(kept: SLA, declared: SLA) -> bool:
    """Whoever kept the first keeps the second."""
    pairs = (
        (kept.ttft_p99_ms, declared.ttft_p99_ms),
        (kept.tpot_p99_ms, declared.tpot_p99_ms),
        (kept.itl_p99_ms, declared.itl_p99_ms),
    )
    return kept.objective >= declared.objective and all(
        wanted is None or (had is not None and had <= wanted) for had, wanted in pairs
    )
