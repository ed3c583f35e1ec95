"""LimitsControl: the live limits, their growing epoch, their lease, and what was certified.

A change names the epoch that it makes; one with an old epoch changes nothing. It may add a lease,
which is renewed by repeating the epoch. When a lease runs out, the tuner is gone: the limits return
to the last certified ones, and stay as they are if none were certified.
"""

import math
from dataclasses import replace

from paceline_wire import Coefficients, LimitsState, SetLimits
from paceline_wire.limits import Capacity, Limits, clamp
from paceline_wire.step_cost import NUM_TERMS

_FIELDS = (
    "max_batch_size",
    "token_budget",
    "step_target_ms",
    "interactive_share",
    "batch_share",
    "pace_tpot_ms",
    "batch_step_target_ms",
    "may_pause_batch",
)

_LARGEST_COEFFICIENT = 1e9
_LEAST_STEP_MS = 1e-6


class LimitsControl:
    """Holds the one `Limits` snapshot that the next step reads, and its epoch."""

    def __init__(self, initial: Limits, capacity: Capacity) -> None:
        self.limits, self._clamped = clamp(initial, capacity)
        self.epoch = 0
        self._requested = initial
        self._capacity = capacity
        self._certified: Limits | None = None
        self._since_step = 0
        self.lease_expires_at: float | None = None
        """When the limits return to the certified ones, None without a lease."""
        self._lease_lost = False

    def change(self, wanted: SetLimits, *, now: float, next_step: int, decodes: int) -> LimitsState:
        """Apply a change, or renew a lease; `error` of the answer is why neither happened."""
        error = self._refusal(wanted)
        if error is None:
            if wanted.epoch > self.epoch:
                self._apply(wanted, next_step)
            lease_s = wanted.lease_s
            self.lease_expires_at = None if lease_s is None else now + lease_s
        return self.state(call=wanted.call, decodes=decodes, error=error)

    def expire(self, *, now: float, next_step: int, decodes: int) -> LimitsState | None:
        """Return to the certified limits if the lease has run out by `now`; the new state then."""
        if self.lease_expires_at is None or now < self.lease_expires_at:
            return None
        self.lease_expires_at = None
        self._lease_lost = True
        if self._certified is not None:
            self._requested = self._certified
            self.limits, self._clamped = clamp(self._requested, self._capacity)
            self._since_step = next_step
        return self.state(call=0, decodes=decodes)

    def state(self, *, call: int, decodes: int, error: str | None = None) -> LimitsState:
        """Report what was asked for and what holds, given the `decodes` that now run."""
        effective, clamped = self.limits, self._clamped
        if effective.token_budget < decodes:
            # Rows that a lowered batch size drains still decode, one token each.
            effective = replace(effective, token_budget=decodes)
            clamped = tuple(dict.fromkeys((*clamped, "token_budget")))
        return LimitsState(
            call=call,
            requested=self._requested,
            effective=effective,
            certified=self._certified or self.limits,
            capacity=self._capacity,
            epoch=self.epoch,
            since_step=self._since_step,
            lease_expires_at=self.lease_expires_at,
            lease_lost=self._lease_lost,
            clamped=list(clamped),
            error=error,
        )

    def _refusal(self, wanted: SetLimits) -> str | None:
        if wanted.epoch < self.epoch:
            return f"epoch must be at least {self.epoch}, which holds, got {wanted.epoch}"
        return (
            _out_of_bounds(wanted) or self._no_share_left(wanted) or _no_model(wanted.coefficients)
        )

    def _no_share_left(self, wanted: SetLimits) -> str | None:
        interactive = _or(wanted.interactive_share, self._requested.interactive_share)
        batch = _or(wanted.batch_share, self._requested.batch_share)
        if interactive + batch == 0:
            return "interactive_share and batch_share must not both be 0"
        return None

    def _apply(self, wanted: SetLimits, next_step: int) -> None:
        given = {name: value for name in _FIELDS if (value := getattr(wanted, name)) is not None}
        if wanted.clear_step_target:
            given["step_target_ms"] = None
        if wanted.clear_pace_tpot:
            given["pace_tpot_ms"] = None
        if wanted.clear_batch_step_target:
            given["batch_step_target_ms"] = None
        self.epoch = wanted.epoch
        self._requested = replace(self._requested, **given)
        self.limits, self._clamped = clamp(self._requested, self._capacity)
        self._since_step = next_step
        self._lease_lost = False
        if wanted.certified:
            self._certified = self.limits


def _out_of_bounds(wanted: SetLimits) -> str | None:
    for name in ("max_batch_size", "token_budget"):
        count = getattr(wanted, name)
        if count is not None and count < 1:
            return f"{name} must be at least 1, got {count}"
    for name in ("step_target_ms", "pace_tpot_ms", "batch_step_target_ms", "lease_s"):
        value = getattr(wanted, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            return f"{name} must be a positive number, got {value}"
    for name in ("interactive_share", "batch_share"):
        share = getattr(wanted, name)
        if share is not None and not 0 <= share <= 1:
            return f"{name} must be in [0, 1], got {share}"
    return None


def _no_model(given: Coefficients | None) -> str | None:
    """Why no step time can be predicted from these; None where they are fine or absent."""
    if given is None:
        return None
    if len(given.theta) != NUM_TERMS:
        return f"coefficients.theta must hold {NUM_TERMS} numbers, got {len(given.theta)}"
    for name, values in (("theta", given.theta), ("correction", given.correction)):
        wrong = [value for value in values if not 0 <= value <= _LARGEST_COEFFICIENT]
        if wrong:
            bounds = f"between 0 and {_LARGEST_COEFFICIENT:g}"
            return f"coefficients.{name} must be {bounds}, got {wrong[0]}"
    if given.theta[0] + given.theta[1] < _LEAST_STEP_MS:
        return f"coefficients.theta must let a step take {_LEAST_STEP_MS:g} ms, got {given.theta}"
    if given.knee < 1:
        return f"coefficients.knee must be at least 1, got {given.knee}"
    return None


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value
