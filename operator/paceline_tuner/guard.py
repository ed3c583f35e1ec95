"""Guard: how far one decision may move a pod's limits towards the proposals.

A model refitted every few seconds wavers; limits must not. They are lowered to the median of the
last three proposals and raised to the minimum of the last six, and change only beyond a dead band.
A limit far above the actual load has no effect, and stays as it is.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline_tuner.attainment import large_step_tokens
from paceline_tuner.pod_view import PodView
from paceline_tuner.tuned_limits import TunedLimits

_DEAD_BAND = 0.08  # of the batch size and the token budget
_RAISE_DEAD_BAND = 0.16  # raising is never urgent: wide enough that two changes do not alternate
_TILE = 16
_TARGET_DEAD_BAND = 0.05
_JUMP_DEAD_BAND = 0.01  # of a target: a jump is exact, but not for what nobody could measure
_NEAR = 0.75  # of the lower batch size: with less that runs or waits it would limit nothing
_IN_USE = 0.5  # of the batch size: with less that runs nobody knows what a larger one does
_MAX_DECREASE = 0.8
_MAX_INCREASE = 1.25
_TO_LOWER = 3  # proposals
_TO_RAISE = 6
PROPOSALS = _TO_RAISE
_COOL_AFTER_DECREASE_S = 10.0
_COOL_AFTER_INCREASE_S = 30.0
_URGENT_SPACING_S = 4.0  # below one period: an urgent decrease may follow at the next tick


def guarded(view: PodView, *, may_jump: bool) -> TunedLimits:
    """Choose the limits that should hold now: the proposals, as far as the guards let them."""
    state, current, now = view.state, view.current, view.evidence.now
    if not state.proposals:
        return current
    is_new = now < state.transition_until and len(state.proposals) == 1
    may_jump = may_jump or is_new or view.spec.mode == "Fixed" or view.evidence.limits.lease_lost
    guard = Guard(
        may_jump=may_jump,
        is_urgent=view.is_missing_pace or current.step_target_ms is None,
        num_running=view.evidence.load.running,
        num_waiting=view.evidence.load.waiting,
        num_tokens=large_step_tokens(view.evidence.steps),
        widen=2.0 if state.is_swinging(now) else 1.0,
        by_drift=is_new and state.is_drifted,
    )
    wanted = guard.apply(current, state.proposals)
    if may_jump or wanted == current or _has_cooled(view, guard, wanted):
        return wanted
    return current


def _has_cooled(view: PodView, guard: "Guard", wanted: TunedLimits) -> bool:
    """Long enough ago the limits changed last for these to follow."""
    state, now = view.state, view.evidence.now
    since_s = now - state.changed_at
    is_raise = wanted.is_raise_from(view.current)
    if is_raise and (now < state.backoff_until or since_s < _COOL_AFTER_INCREASE_S * guard.widen):
        return False
    if guard.is_urgent and not is_raise:
        return since_s >= _URGENT_SPACING_S
    cool_s = _COOL_AFTER_INCREASE_S if state.was_raised else _COOL_AFTER_DECREASE_S
    return since_s >= cool_s * guard.widen


@dataclass(frozen=True, slots=True)
class Guard:
    """How far one decision may move."""

    may_jump: bool
    """A new engine or a new SLA: go where the model says at once."""
    is_urgent: bool
    """The SLA is being missed: lower at once."""
    num_running: int
    """Sequences: what they do not come near is not limited by the batch size."""
    num_waiting: int = 0
    num_tokens: int = 0
    """Tokens of the largest usual step with a decode: a larger budget limits nothing."""
    widen: float = 1.0
    """Multiplies the dead bands; doubled while limits swing."""
    by_drift: bool = False
    """The jump is one of load or device: what limits nothing may stay as it is."""

    def apply(self, current: TunedLimits, proposals: Sequence[TunedLimits]) -> TunedLimits:
        """Move from `current` towards the proposals, oldest first; the last is the newest."""
        latest = proposals[-1]
        if self.may_jump:
            return self._settle(current, self._felt(current, latest) if self.by_drift else latest)
        wanted = TunedLimits(
            self._batch(current.batch_size, [p.batch_size for p in proposals]),
            self._budget(current.token_budget, [p.token_budget for p in proposals]),
            self._step_target(current, proposals),
            self._target(current.pace_tpot_ms, [p.pace_tpot_ms for p in proposals]),
        )
        return self._settle(current, wanted)

    def _felt(self, current: TunedLimits, wanted: TunedLimits) -> TunedLimits:
        batch, budget = wanted.batch_size, wanted.token_budget
        if batch < current.batch_size and not self._is_near(batch):
            batch = current.batch_size
        if max(self.num_tokens, 1) <= min(budget, current.token_budget - 1):
            budget = current.token_budget
        return replace(wanted, batch_size=batch, token_budget=budget)

    def _is_near(self, batch: int) -> bool:
        return self.num_running + self.num_waiting >= _NEAR * batch

    def _batch(self, current: int, proposed: Sequence[int]) -> int:
        lower = proposed[-1] if self.is_urgent else _middle(proposed)
        if lower < current:
            return lower if self.is_urgent else self._lowered(current, lower)
        least = _least(proposed)
        is_in_use = self.num_running >= _IN_USE * current
        if least is not None and least > current and is_in_use:
            return min(least, max(int(current * _MAX_INCREASE), current + 1))
        return current

    def _lowered(self, current: int, lower: int) -> int:
        if not self._is_near(lower):
            return current
        # Slowly where sequences have to leave; rows that nobody holds can go at once.
        slowest = math.ceil(current * _MAX_DECREASE - 1e-9)
        return max(lower, min(slowest, self.num_running, current - 1))

    def _budget(self, current: int, proposed: Sequence[int]) -> int:
        lower = proposed[-1] if self.is_urgent else _middle(proposed)
        if lower < current:
            return lower if self.is_urgent or self.num_tokens > lower else current
        least = _least(proposed)
        if least is not None and least > current and self.num_tokens >= current:
            return min(least, int(current * _MAX_INCREASE))
        return current

    def _step_target(self, current: TunedLimits, proposals: Sequence[TunedLimits]) -> float | None:
        targets = [p.step_target_ms for p in proposals]
        held, pace = current.pace_tpot_ms, proposals[-1].pace_tpot_ms
        if held is None or pace is None:
            return self._target(current.step_target_ms, targets)
        # Where requests are paced it only stands by: it moves when their pace does.
        moved = self._target(held, [p.pace_tpot_ms for p in proposals])
        is_still = self._still(held, moved) == held
        return current.step_target_ms if is_still else targets[-1]

    def _target(self, current: float | None, proposed: Sequence[float | None]) -> float | None:
        targets = [target_ms for target_ms in proposed if target_ms is not None]
        latest = proposed[-1]
        if latest is None or current is None or len(targets) < len(proposed):
            return latest
        lower = latest if self.is_urgent else statistics.median_low(targets[-_TO_LOWER:])
        if lower < current:
            return lower
        return max(current, min(targets)) if len(targets) >= _TO_RAISE else current

    def _settle(self, current: TunedLimits, wanted: TunedLimits) -> TunedLimits:
        """Leave out what is too small to be worth a change."""
        batch = wanted.batch_size
        move = batch - current.batch_size
        if abs(move) <= self._batch_band(current.batch_size, is_raise=move > 0):
            batch = current.batch_size
        budget = wanted.token_budget
        share = _RAISE_DEAD_BAND if budget > current.token_budget else _DEAD_BAND
        band = max(_TILE, share * current.token_budget) * self.widen
        if abs(budget - current.token_budget) <= band:
            budget = current.token_budget
        target_ms = self._still(current.step_target_ms, wanted.step_target_ms)
        return TunedLimits(
            batch, budget, target_ms, self._still(current.pace_tpot_ms, wanted.pace_tpot_ms)
        )

    def _still(self, current: float | None, wanted: float | None) -> float | None:
        if wanted is None or current is None:
            return wanted
        band = _JUMP_DEAD_BAND if self.may_jump else _TARGET_DEAD_BAND * self.widen
        return current if abs(wanted / current - 1) <= band else wanted

    def _batch_band(self, current: int, *, is_raise: bool) -> float:
        if self.is_urgent and not self.may_jump and not is_raise:
            return 0.0
        # A sequence or two more or less is noise where few run.
        if is_raise:
            return max(2.0, _RAISE_DEAD_BAND * current) * self.widen
        return max(1.0, _DEAD_BAND * current) * self.widen


def _middle(values: Sequence[int]) -> int:
    return statistics.median_high(values[-_TO_LOWER:])


def _least(values: Sequence[int]) -> int | None:
    return min(values[-_TO_RAISE:]) if len(values) >= _TO_RAISE else None
