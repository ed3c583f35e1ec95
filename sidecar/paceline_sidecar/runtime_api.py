"""The page docs/runtime-api.md as types: what the admin port reads and writes."""

from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from paceline_engine.limits import Lane
from paceline_engine.wire import (
    CapacityInfo,
    Coefficients,
    EngineLoad,
    LimitsState,
    LimitsView,
    ModelInfo,
    StepModelInfo,
    StepProfile,
    StepRecord,
)
from paceline_sidecar.adapter_plan import AdapterState
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_sidecar.telemetry.record import Outcome, RequestRecord
from paceline_sidecar.telemetry.sketch import ALPHA, Slice

_LARGEST = 2**31 - 1

Count = Annotated[int, Meta(ge=1, le=_LARGEST)]
TargetMs = Annotated[float, Meta(gt=0, le=3_600_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Coefficient = Annotated[float, Meta(ge=0, le=1e9)]
AdapterName = Annotated[str, Meta(min_length=1, max_length=128)]
AdapterPath = Annotated[str, Meta(min_length=1, max_length=4096, pattern="^(/|hf://.)")]
"""A folder of the engine's container, or `hf://ORG/NAME@COMMIT`."""
PositiveShare = Annotated[float, Meta(gt=0, le=1)]


# --- PATCH /runtime/limits -----------------------------------------------------------------------


class SlaPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sla`: what is left out stays, null removes a target."""

    ttft_p99_ms: TargetMs | UnsetType | None = UNSET
    tpot_p99_ms: TargetMs | UnsetType | None = UNSET
    itl_p99_ms: TargetMs | UnsetType | None = UNSET
    objective: Annotated[float, Meta(gt=0, lt=1)] | UnsetType = UNSET


class AdmissionPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`admission`: what is left out stays."""

    max_queued_requests: Count | UnsetType = UNSET
    max_queued_tokens: Count | UnsetType | None = UNSET
    reject_at: PositiveShare | UnsetType = UNSET
    request_timeout_s: Annotated[float, Meta(gt=0, le=86_400)] | UnsetType = UNSET
    shed_hopeless: bool | UnsetType = UNSET


class CoefficientsPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`coefficients`: where the step model starts from while it has no fit of its own."""

    theta: Annotated[list[Coefficient], Meta(min_length=5, max_length=5)]
    knee: Count
    correction: Annotated[list[Coefficient], Meta(max_length=4096)] = []
    bin_tokens: Count = 128


class AdapterPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of `adapters`: a LoRA adapter that the engine is to have."""

    name: AdapterName
    path: AdapterPath


class ConfigPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change without its epoch: also the content of the runtime configuration file."""

    max_batch_size: Count | UnsetType = UNSET
    token_budget: Count | UnsetType = UNSET
    step_target_ms: TargetMs | UnsetType | None = UNSET
    interactive_share: Share | UnsetType = UNSET
    batch_share: Share | UnsetType = UNSET
    pace_tpot_ms: TargetMs | UnsetType | None = UNSET
    batch_step_target_ms: TargetMs | UnsetType | None = UNSET
    sla: SlaPatch | UnsetType = UNSET
    batch_sla: SlaPatch | UnsetType | None = UNSET
    """The batch lane's own targets; null judges it by `sla` again."""
    admission: AdmissionPatch | UnsetType = UNSET
    config_hash: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    certified: bool = False
    lease_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    coefficients: CoefficientsPatch | UnsetType = UNSET
    adapters: Annotated[list[AdapterPatch], Meta(max_length=256)] | UnsetType = UNSET
    """All LoRA adapters that the engine is to have; what is left out is unloaded."""


class LimitsPatch(ConfigPatch, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of `PATCH /runtime/limits`."""

    epoch: Annotated[int, Meta(ge=0, le=2**62)]


def coefficients_of(patch: ConfigPatch) -> Coefficients | None:
    """What the engine shall start from; None where the change does not say."""
    given = patch.coefficients
    if isinstance(given, UnsetType):
        return None
    return Coefficients(
        theta=given.theta,
        knee=given.knee,
        correction=given.correction,
        bin_tokens=given.bin_tokens,
    )


def merged(config: HotConfig, patch: ConfigPatch) -> HotConfig:
    """What the sidecar obeys after the change."""
    sla, batch_sla, admission = config.sla, config.batch_sla, config.admission
    if isinstance(patch.sla, SlaPatch):
        sla = replace(sla, **_given(patch.sla))
    if isinstance(patch.batch_sla, SlaPatch):
        batch_sla = replace(batch_sla or Sla(), **_given(patch.batch_sla))
    elif patch.batch_sla is None:
        batch_sla = None
    if isinstance(patch.admission, AdmissionPatch):
        admission = replace(admission, **_given(patch.admission))
    given_hash = patch.config_hash
    config_hash = config.config_hash if isinstance(given_hash, UnsetType) else given_hash
    return HotConfig(sla=sla, batch_sla=batch_sla, admission=admission, config_hash=config_hash)


# --- GET /runtime/limits -------------------------------------------------------------------------


class LimitsAnswer(msgspec.Struct, frozen=True):
    """The state of the limits, and of what the sidecar itself obeys."""

    requested: LimitsView
    effective: LimitsView
    certified: LimitsView
    capacity: CapacityInfo
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


def _given(patch: msgspec.Struct) -> dict[str, Any]:
    values = ((name, getattr(patch, name)) for name in patch.__struct_fields__)
    return {name: value for name, value in values if value is not UNSET}
