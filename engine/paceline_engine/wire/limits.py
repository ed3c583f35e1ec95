"""A change of the live limits, and what holds after it."""

import msgspec


class Coefficients(msgspec.Struct, frozen=True):
    """A step-time model that was fitted elsewhere, on the same model, engine and device."""

    theta: list[float]
    """th0..th4, as in `StepModelInfo`."""
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
    """Switch the pacer off: only the token budget bounds a step."""
    interactive_share: float | None = None
    batch_share: float | None = None
    lease_s: float | None = None
    """Without renewal the engine returns to its last certified limits after this long."""
    certified: bool = False
    """The operator has certified the limits that now hold: what a lost lease returns to."""
    pace_tpot_ms: float | None = None
    clear_pace_tpot: bool = False
    """Pace steps by the step target again, if there is one."""
    batch_step_target_ms: float | None = None
    clear_batch_step_target: bool = False
    """The batch lane wants what all want again."""
    coefficients: Coefficients | None = None
    """Where the step model starts from while it has no fit of its own; ignored afterwards."""


class CapacityInfo(msgspec.Struct, frozen=True):
    """`limits.Capacity`, on the wire."""

    max_batch_size: int
    max_token_budget: int
    num_blocks: int
    block_size: int
    max_model_len: int


class LimitsView(msgspec.Struct, frozen=True):
    """`limits.Limits`, on the wire."""

    max_batch_size: int
    token_budget: int
    step_target_ms: float | None
    interactive_share: float
    batch_share: float
    pace_tpot_ms: float | None = None
    batch_step_target_ms: float | None = None


class LimitsState(msgspec.Struct, frozen=True, tag=True):
    """What was asked for, what holds, and since when."""

    call: int
    """The `SetLimits.call` answered, 0 when the engine speaks by itself (a lost lease)."""
    requested: LimitsView
    effective: LimitsView
    certified: LimitsView
    capacity: CapacityInfo
    epoch: int
    since_step: int
    """The first step that ran, or will run, under `effective`."""
    lease_expires_at: float | None
    lease_lost: bool
    clamped: list[str]
    """Fields of `requested` that capacity or the running decodes changed."""
    ignored: list[str] = []
    """Fields of the change that had no effect: `coefficients`, once there is a fit."""
    error: str | None = None
    """Why nothing was changed, when nothing was."""
