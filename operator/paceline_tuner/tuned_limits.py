"""TunedLimits: the live limits of one pod that the tuner chooses."""

from dataclasses import dataclass

from msgspec import UNSET

from paceline_tuner.telemetry import LimitValues


@dataclass(frozen=True, slots=True)
class TunedLimits:
    """Max batch size, token budget, step target, and the pace of each request."""

    batch_size: int
    token_budget: int
    step_target_ms: float | None
    pace_tpot_ms: float | None = None

    @classmethod
    def of(cls, limits: LimitValues) -> "TunedLimits":
        """Read from a pod's limits."""
        pace_ms = None if limits.pace_tpot_ms is UNSET else limits.pace_tpot_ms
        return cls(limits.max_batch_size, limits.token_budget, limits.step_target_ms, pace_ms)

    def is_raise_from(self, current: "TunedLimits") -> bool:
        """No limit goes down, so nothing gets safer."""
        held, target = current.step_target_ms, self.step_target_ms
        is_tighter = target is not None and (held is None or target < held)
        held, pace = current.pace_tpot_ms, self.pace_tpot_ms
        # No pace leaves the step target, which allows less.
        is_tighter |= held is not None and (pace is None or pace < held)
        return not (
            self.batch_size < current.batch_size
            or self.token_budget < current.token_budget
            or is_tighter
        )
