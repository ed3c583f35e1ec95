"""The live limits of an engine, the messages that change them, and the state after a change.

The scheduler reads one `Limits` snapshot at the start of a step and no other, so a change is
seen by the next step and never by half of one. Each accepted change has an epoch, which grows: the
`LimitsState` names the one that holds.
"""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

Lane = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was allocated at start. No limit is ever above it."""

    max_batch_size: int
    """Rows: sequences that can hold KV blocks at once."""
    max_token_budget: int
    """Tokens (decode and prefill) that one step's buffers can hold."""
    num_blocks: int
    """KV blocks in the pool."""
    block_size: int
    """Tokens in one KV block."""
    max_model_len: int
    """Longest sequence, prompt and output, in tokens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The live caps of one engine."""

    max_batch_size: int
    """Cap on running sequences. Lowering drains: nothing that runs is touched."""
    token_budget: int
    """Cap on tokens (decode and prefill) in one step."""
    step_target_ms: float | None = None
    """Wanted step time; the pacer picks the largest token total predicted to keep it.

    Applies only where the slack of `pace_tpot_ms` does not.
    """
    interactive_share: float = 0.8
    """Share of the prefill budget that the interactive lane gets while both lanes wait."""
    batch_share: float = 0.2
    """Share of the prefill budget that the batch lane gets while both lanes wait."""
    pace_tpot_ms: float | None = None
    """Wanted mean time per token of each request; steps are paced by the requests' slack then."""
    batch_step_target_ms: float | None = None
    """Wanted step time for the decodes of the batch lane; None where `step_target_ms` is for all.

    Each step keeps the least target of the lanes that decode in it.
    """
    may_pause_batch: bool | None = None
    """Whether decodes of the batch lane may leave steps to interactive prompts.

    None is said of an engine that does not know how to.
    """


def clamp(wanted: Limits, capacity: Capacity) -> tuple[Limits, tuple[str, ...]]:
    """Bring `wanted` within `capacity`; the second value names each field that was changed."""
    batch = min(max(wanted.max_batch_size, 1), capacity.max_batch_size)
    # A decode step needs one token per running row, or decoding would starve.
    budget = min(max(wanted.token_budget, batch), capacity.max_token_budget)
    fields = {"max_batch_size": batch, "token_budget": budget}
    changed = tuple(name for name, value in fields.items() if getattr(wanted, name) != value)
    return replace(wanted, max_batch_size=batch, token_budget=budget), changed


class Coefficients(msgspec.Struct, frozen=True):
    """A step-time model that was fitted elsewhere, on the same model, engine and device."""

    theta: list[float]
    """th0..th4 of the formula in `step_cost`."""
    knee: int
    correction: list[float] = []
    """Factor per bin of `bin_tokens`; a bin that is left out is not corrected."""
    bin_tokens: int = 128
    """An engine with other bins corrects nothing by them."""


class SetLimits(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Change any subset of the limits. Answered by `LimitsState` with the same `call`."""

    call: int
    epoch: int
    """Must be greater than the engine's epoch, or equal to it to renew the lease unchanged."""
    max_batch_size: int | None = None
    token_budget: int | None = None
    step_target_ms: float | None = None
    clear_step_target: bool = False
    """Remove the step target; unless a pace is set, only the token budget bounds a step then."""
    interactive_share: float | None = None
    batch_share: float | None = None
    lease_s: float | None = None
    """Seconds after which the engine returns to its certified limits, unless this is renewed."""
    certified: bool = False
    """The operator has certified the limits that now hold: what a lost lease returns to."""
    pace_tpot_ms: float | None = None
    clear_pace_tpot: bool = False
    """Pace steps by the step target again, if there is one."""
    batch_step_target_ms: float | None = None
    clear_batch_step_target: bool = False
    """Remove the batch lane's own target."""
    may_pause_batch: bool | None = None
    coefficients: Coefficients | None = None
    """Where the step model starts from while it has no fit of its own; ignored afterwards."""


class LimitsState(msgspec.Struct, frozen=True, tag=True):
    """The limits that were asked for, those that hold, and since which step."""

    call: int
    """The `SetLimits.call` answered, 0 when the engine reports by itself (a lost lease)."""
    requested: Limits
    effective: Limits
    certified: Limits
    capacity: Capacity
    epoch: int
    """The epoch of the last accepted change; 0 before any."""
    since_step: int
    """The first step that ran, or will run, under `effective`."""
    lease_expires_at: float | None
    lease_lost: bool
    clamped: list[str]
    """Fields of `requested` that capacity or the running decodes changed."""
    ignored: list[str] = []
    """Fields of the change that had no effect: `coefficients`, once there is a fit."""
    error: str | None = None
    """Why the change was refused; None where it was not."""
