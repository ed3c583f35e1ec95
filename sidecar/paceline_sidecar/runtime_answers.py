"""The page docs/runtime-api.md as types: what the admin port answers."""

from typing import Literal

import msgspec

from paceline_sidecar.adapter_plan import AdapterState
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_sidecar.telemetry.record import Outcome, RequestRecord
from paceline_sidecar.telemetry.sketch import ALPHA, Slice
from paceline_wire import (
    Capacity,
    EngineLoad,
    Limits,
    LimitsState,
    ModelInfo,
    StepModelInfo,
    StepProfile,
    StepRecord,
)
from paceline_wire.limits import Lane

# --- GET /runtime/limits -------------------------------------------------------------------------


class LimitsAnswer(msgspec.Struct, frozen=True):
    """The state of the limits, and of what the sidecar itself obeys."""

    requested: Limits
    effective: Limits
    certified: Limits
    capacity: Capacity
    epoch: int
    since_step: int
    lease_expires_s: float | None
    lease_lost: bool
    clamped: list[str]
    ignored: list[str]
    sla: Sla
    admission: AdmissionPolicy
    config_hash: str
    instance: str
    batch_sla: Sla | None = None
    """The batch lane's own targets; null where it is judged by `sla`."""


def limits_answer(
    state: LimitsState, config: HotConfig, *, instance: str, now: float
) -> LimitsAnswer:
    """What holds now."""
    expires_at = state.lease_expires_at
    return LimitsAnswer(
        requested=state.requested,
        effective=state.effective,
        certified=state.certified,
        capacity=state.capacity,
        epoch=state.epoch,
        since_step=state.since_step,
        lease_expires_s=None if expires_at is None else max(0.0, expires_at - now),
        lease_lost=state.lease_lost,
        clamped=state.clamped,
        ignored=state.ignored,
        sla=config.sla,
        admission=config.admission,
        config_hash=config.config_hash,
        instance=instance,
        batch_sla=config.batch_sla,
    )


# --- GET /runtime/telemetry ----------------------------------------------------------------------


class Info(msgspec.Struct, frozen=True):
    """The model, as far as its cost goes."""

    name: str
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    device: str
    dtype: str
    revision: str
    engine_version: str
    features: list[str]


class Step(msgspec.Struct, frozen=True):
    """One step; `seq` is the sidecar's number."""

    seq: int
    at: float
    wall_ms: float
    host_ms: float
    decode: int
    prefill: int
    context: int
    attention: int
    running: int
    waiting: int
    waiting_tokens: int
    kv_used: int
    preemptions: int
    epoch: int
    token_budget: int
    paced_tokens: int
    predicted_ms: float
    clean: bool
    draft_ms: float


class Request(msgspec.Struct, frozen=True):
    """One request that ended."""

    seq: int
    lane: Lane
    arrived_at: float
    finished_at: float
    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    itl_max_ms: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    outcome: Outcome
    epoch: int


class Sketch(msgspec.Struct, frozen=True):
    """Five seconds of one lane's inter-token gaps."""

    metric: Literal["itl_ms"]
    lane: Lane
    start_at: float
    alpha: float
    zero: int
    bins: dict[str, int]


class TelemetryAnswer(msgspec.Struct, frozen=True):
    """Everything that the tuner reads of one pod."""

    instance: str
    now: float
    next: int
    lost: int
    ready: bool
    limits: LimitsAnswer | None
    load: EngineLoad | None
    model: StepModelInfo | None
    info: Info | None
    steps: list[Step]
    requests: list[Request]
    sketches: list[Sketch]
    adapters: list[AdapterState]


# --- GET /runtime/profile ------------------------------------------------------------------------


class ProfileAnswer(msgspec.Struct, frozen=True):
    """What the engine measured of its steps before it served."""

    instance: str
    profile: StepProfile | None
    """None where no engine is ready, or nothing was measured."""


def step_of(seq: int, record: StepRecord) -> Step:
    """The engine numbers its steps by itself; a reader of the page wants the sidecar's number."""
    return Step(seq, *(getattr(record, name) for name in Step.__struct_fields__[1:]))


def request_of(seq: int, record: RequestRecord) -> Request:
    """One record of the ring."""
    return Request(seq, *(getattr(record, name) for name in Request.__struct_fields__[1:]))


def sketch_of(part: Slice) -> Sketch:
    """One slice; JSON's keys are strings."""
    bins = {str(index): count for index, count in sorted(part.bins.items())}
    return Sketch("itl_ms", part.lane, part.start_at, ALPHA, part.zero, bins)


def info_of(model: ModelInfo) -> Info:
    """The part of the model's description that the page shows."""
    return Info(*(getattr(model, name) for name in Info.__struct_fields__))
