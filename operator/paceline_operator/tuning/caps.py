"""Caps: the live limits that the tuner chooses, and the guards on their way to a pod.

A model refitted every few seconds wavers; limits must not. Lowering follows the middle of the
last three proposals, raising the least of the last six, and neither leaves the dead band.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET

from paceline_operator.telemetry import LimitValues

_BATCH_DEAD_BAND = 0.08
_RAISE_DEAD_BAND = 0.16  # raising is never urgent: wide enough that two changes do not alternate
_BUDGET_DEAD_BAND = 0.08
_TILE = 16
_TARGET_DEAD_BAND = 0.05
_MAX_DECREASE = 0.8
_MAX_INCREASE = 1.25
_TO_LOWER = 3  # proposals
_TO_RAISE = 6
PROPOSALS = _TO_RAISE


@dataclass(frozen=True, slots=True)
class Caps:
    """Max batch size, token budget, step target, pace of each request."""

    batch_size: int
    token_budget: int
    step_target_ms: float | None
    pace_tpot_ms: float | None = None

    @classmethod
    def of(cls, limits: LimitValues) -> "Caps":
        """Read from a pod's limits."""
        pace_ms = None if limits.pace_tpot_ms is UNSET else limits.pace_tpot_ms
        return cls(limits.max_batch_size, limits.token_budget, limits.step_target_ms, pace_ms)


@dataclass(frozen=True, slots=True)
class Guard:
    """How far one decision may move."""

    may_jump: bool
    """A new engine or a new SLA: go where the model says at once."""
    is_urgent: bool
    """The SLA is being missed: lower at once."""
    may_raise_batch: bool
    """Enough runs for the batch size to matter."""
    widen: float = 1.0
    """Of the dead bands; doubled while limits swing."""

    def apply(self, current: Caps, proposals: Sequence[Caps]) -> Caps:
        """Move from `current` towards the proposals, oldest first; the last is the newest."""
        latest = proposals[-1]
        if self.may_jump:
            return self._settle(current, latest)
        wanted = Caps(
            self._batch(current.batch_size, [p.batch_size for p in proposals]),
            self._budget(current.token_budget, [p.token_budget for p in proposals]),
            self._target(current.step_target_ms, [p.step_target_ms for p in proposals]),
            self._target(current.pace_tpot_ms, [p.pace_tpot_ms for p in proposals]),
        )
        return self._settle(current, wanted)

    def _batch(self, current: int, proposed: Sequence[int]) -> int:
        lower = proposed[-1] if self.is_urgent else _middle(proposed)
        if lower < current:
            slowest = 1 if self.is_urgent else math.ceil(current * _MAX_DECREASE - 1e-9)
            return max(lower, min(slowest, current - 1))
        least = _least(proposed)
        if least is not None and least > current and self.may_raise_batch:
            return min(least, max(int(current * _MAX_INCREASE), current + 1))
        return current

    def _budget(self, current: int, proposed: Sequence[int]) -> int:
        lower = proposed[-1] if self.is_urgent else _middle(proposed)
        if lower < current:
            return lower
        least = _least(proposed)
        if least is not None and least > current:
            return min(least, int(current * _MAX_INCREASE))
        return current

    def _target(self, current: float | None, proposed: Sequence[float | None]) -> float | None:
        targets = [target_ms for target_ms in proposed if target_ms is not None]
        latest = proposed[-1]
        if latest is None or current is None or len(targets) < len(proposed):
            return latest
        lower = latest if self.is_urgent else statistics.median_low(targets[-_TO_LOWER:])
        if lower < current:
            return lower
        return max(current, min(targets)) if len(targets) >= _TO_RAISE else current

    def _settle(self, current: Caps, wanted: Caps) -> Caps:
        """Leave out what is too small to be worth a change."""
        batch = wanted.batch_size
        move = batch - current.batch_size
        if abs(move) <= self._batch_band(current.batch_size, is_raise=move > 0):
            batch = current.batch_size
        budget = wanted.token_budget
        band = max(_TILE, _BUDGET_DEAD_BAND * current.token_budget) * self.widen
        if abs(budget - current.token_budget) <= band:
            budget = current.token_budget
        target_ms = self._still(current.step_target_ms, wanted.step_target_ms)
        return Caps(
            batch, budget, target_ms, self._still(current.pace_tpot_ms, wanted.pace_tpot_ms)
        )

    def _still(self, current: float | None, wanted: float | None) -> float | None:
        if wanted is None or current is None:
            return wanted
        band = 0.0 if self.may_jump else _TARGET_DEAD_BAND * self.widen
        return current if abs(wanted / current - 1) <= band else wanted

    def _batch_band(self, current: int, *, is_raise: bool) -> float:
        if self.may_jump or (self.is_urgent and not is_raise):
            return 0.0
        # A sequence or two more or less is noise where few run.
        if is_raise:
            return max(2.0, _RAISE_DEAD_BAND * current) * self.widen
        return max(1.0, _BATCH_DEAD_BAND * current) * self.widen


def _middle(values: Sequence[int]) -> int:
    return statistics.median_high(values[-_TO_LOWER:])


def _least(values: Sequence[int]) -> int | None:
    return min(values[-_TO_RAISE:]) if len(values) >= _TO_RAISE else None
