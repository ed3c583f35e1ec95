"""The step target τ: how long a step may take so that gaps and requests keep their targets."""

import math
from dataclasses import dataclass
from typing import Literal

from paceline_tuner.balance import Balance
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import ModelFit

_TAIL_POWER = 2.33 / 1.64 - 1
_MIN_TAIL = 0.7
_TPOT_SHARE = 0.95  # a request's mean must stay below its target, with some room
_MEAN_OVER_TAIL = 1.15  # most of q_r that a mean over many steps may take back
_LONGEST_STEP = 2.0  # of the pace: as the engine clips its slack
_FLOOR_ROOM = 3.0  # with a target that no step can meet, steps may take three floors
_UNFITTED = ModelFit(
    theta=(0.0,) * 5,
    prior=(0.0,) * 5,
    knee=256,
    correction=(),
    fast=1.0,
    q_r=1.3,  # of the engine's pacer before its first fit
    samples=0,
    mape=0.0,
    valid=False,
)


@dataclass(frozen=True, slots=True)
class StepTarget:
    """τ, and which SLA asked for it."""

    ms: float | None
    binding: Literal["SLA:itl", "SLA:tpot", "None"]
    is_below_floor: bool = False
    """Not even one decode alone keeps the SLA."""
    pace_tpot_ms: float | None = None
    """Mean time per token that each request keeps, where no single gap counts."""
    balance: Balance | None = None
    """How late gaps were weighed against capacity; None where they were not."""

    @property
    def longest_ms(self) -> float | None:
        """The longest a step may take: an engine that paces requests lets steps exceed τ."""
        if self.ms is None or self.pace_tpot_ms is None:
            return self.ms
        return max(self.ms, _LONGEST_STEP * self.pace_tpot_ms)


def step_target(
    sla: SLA,
    model: ModelFit,
    *,
    trim: float,
    floor_ms: float,
    gives_up: bool,
    has_slack: bool = False,
    balance: Balance | None = None,
) -> StepTarget:
    """Derive τ. The pacer keeps t^ * q_r <= τ, so 95 of 100 steps are within τ.

    With `gives_up`, a target below the floor is left for a pace that serves all requests well.
    With `has_slack` the engine can pace each request, and does so where TPOT alone counts.
    `balance` says what part of the ITL target steps may take; without it, what keeps 99 of 100.
    """
    wanted: list[tuple[float, Literal["SLA:itl", "SLA:tpot"], float]] = []
    if sla.itl_p99_ms is not None:
        # The 99th of 100 gaps counts, not the 95th.
        share = tail(model) if balance is None else balance.share
        wanted.append((sla.itl_p99_ms * share * trim, "SLA:itl", sla.itl_p99_ms))
    if sla.tpot_p99_ms is not None:
        # A mean over many steps does not see the tail that q_r covers.
        mean = min(max(model.q_r, 1.0), _MEAN_OVER_TAIL)
        wanted.append((sla.tpot_p99_ms * _TPOT_SHARE * mean * trim, "SLA:tpot", sla.tpot_p99_ms))
    if not wanted:
        return StepTarget(None, "None")
    target_ms, binding, promised_ms = min(wanted)
    is_below_floor = model.valid and floor_ms > promised_ms
    if is_below_floor and gives_up:
        return StepTarget(_FLOOR_ROOM * floor_ms * model.q_r, binding, is_below_floor)
    pace_ms = None
    if has_slack and sla.itl_p99_ms is None and sla.tpot_p99_ms is not None:
        pace_ms = sla.tpot_p99_ms * trim
    return StepTarget(
        target_ms,
        binding,
        is_below_floor,
        pace_ms,
        balance=balance if binding == "SLA:itl" else None,
    )


def starting_target_ms(sla: SLA) -> float | None:
    """Give τ to an engine that has run no step, so that its first steps are paced too."""
    return step_target(sla, _UNFITTED, trim=1.0, floor_ms=0.0, gives_up=False).ms


def tail(model: ModelFit) -> float:
    """Give the factor on a target that makes the 99th of 100 steps keep it, not the 95th.

    Measured / predicted is about log-normal, and there r99 = r95 ** (2.33 / 1.64). An r99 counted
    from a window's few steps would waver; what this one misses, feedback takes off.
    """
    return max(math.pow(max(model.q_r, 1.0), -_TAIL_POWER), _MIN_TAIL)
