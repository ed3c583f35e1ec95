"""The bodies that the runtime API answers with (docs/runtime-api.md)."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType

from paceline_sidecar.adapter_plan import AdapterState
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig, Sla
from paceline_sidecar.metrics.finished_request import FinishedRequest, Outcome
from paceline_sidecar.metrics.ring import Numbered
from paceline_sidecar.metrics.sample import middle
from paceline_sidecar.metrics.sketch import ALPHA, GapSlice
from paceline_sidecar.tuner_status import TunerStatus
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


class TunerBody(msgspec.Struct, frozen=True):
    """The tuner's last status; empty where there is none, or its lease has ended."""

    phase: str = ""
    verdict: str = ""
    binding: str = ""
    age_s: float | None = None

    @classmethod
    def of(cls, status: TunerStatus | None, *, now: float) -> Self:
        """Describe a status and its age."""
        if status is None:
            return cls()
        return cls(status.phase, status.verdict, status.binding, now - status.at)


class LimitsBody(msgspec.Struct, frozen=True):
    """The limits, and the hot configuration of the sidecar itself."""

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
    reason: str = ""
    """Why these limits, as it was said with them."""
    capacity_rps: float | None = None
    """λ* as it was told; null while nobody has said it, or the lease that came with it is lost."""
    tuner: TunerBody = TunerBody()


def limits_body(
    state: LimitsState,
    config: HotConfig,
    *,
    instance: str,
    now: float,
    reason: str,
    capacity_rps: float | None,
    tuner: TunerBody,
) -> LimitsBody:
    """Describe what holds now."""
    expires_at = state.lease_expires_at
    return LimitsBody(
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
        reason=reason,
        capacity_rps=capacity_rps,
        tuner=tuner,
    )


class ModelBody(msgspec.Struct, frozen=True):
    """The model, as far as the cost of its steps goes."""

    name: str
    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    device: str
    dtype: str
    revision: str
    engine_version: str
    features: list[str]
    dtype_reason: str
    cores: str
    ops: str


class StepBody(msgspec.Struct, frozen=True):
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


class RequestBody(msgspec.Struct, frozen=True):
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


class StepRow(msgspec.Struct, frozen=True, array_like=True):
    """One step of a sample, without names: in the order of the tuner's type."""

    seq: int
    at: float
    wall_ms: float
    decode: int
    prefill: int
    context: int
    attention: int
    running: int
    waiting: int
    waiting_tokens: int
    preemptions: int
    epoch: int
    paced_tokens: int
    predicted_ms: float
    clean: bool
    host_ms: float
    kv_used: int
    draft_ms: float
    weight: int
    """Steps that it stands for."""
    decodes: int
    """Of those, how many had a decode."""


class RequestRow(msgspec.Struct, frozen=True, array_like=True):
    """One request of a sample, without names: in the order of the tuner's type."""

    seq: int
    arrived_at: float
    finished_at: float
    prompt_tokens: int
    output_tokens: int
    outcome: Outcome
    lane: Lane
    queue_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    itl_max_ms: float | None
    cached_tokens: int
    epoch: int
    weight: int
    """Requests that it stands for."""


class SketchBody(msgspec.Struct, frozen=True):
    """Five seconds of one lane's inter-token gaps."""

    metric: Literal["itl_ms"]
    lane: Lane
    start_at: float
    alpha: float
    zero: int
    bins: dict[str, int]


class TelemetryBody(msgspec.Struct, frozen=True):
    """Everything that the tuner reads of one pod."""

    instance: str
    now: float
    next: int
    lost: int
    ready: bool
    limits: LimitsBody | None
    load: EngineLoad | None
    model: StepModelInfo | None
    info: ModelBody | None
    steps: list[StepBody]
    requests: list[RequestBody]
    sketches: list[SketchBody]
    adapters: list[AdapterState]
    pod: str
    """The name of this machine: in Kubernetes that of the pod."""
    step_rows: list[StepRow] | UnsetType = UNSET
    """A sample in place of `steps`, where one was asked for."""
    request_rows: list[RequestRow] | UnsetType = UNSET


class ProfileRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which steps to record, op by op."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    within_s: Annotated[float, msgspec.Meta(gt=0, le=120)] = 30.0
    """It ends then, with the steps that ran."""


class ProfileBody(msgspec.Struct, frozen=True):
    """How long the engine's steps took before it served."""

    instance: str
    profile: StepProfile | None
    """None where no engine is ready, or nothing was measured."""


def step_of(seq: int, record: StepRecord) -> StepBody:
    """The engine numbers its steps by itself; a reader of the page wants the sidecar's number."""
    return StepBody(seq, *(getattr(record, name) for name in StepBody.__struct_fields__[1:]))


def request_of(seq: int, record: FinishedRequest) -> RequestBody:
    """One record of the ring."""
    return RequestBody(seq, *(getattr(record, name) for name in RequestBody.__struct_fields__[1:]))


def step_row(group: Sequence[Numbered[StepRecord]]) -> StepRow:
    """Give the middle step of a group, which stands for all of it."""
    chosen = middle(group)
    values = [_short(getattr(chosen.record, name)) for name in StepRow.__struct_fields__[1:-2]]
    decodes = sum(each.record.decode > 0 for each in group)
    return StepRow(*[chosen.seq, *values, len(group), decodes])


def request_row(group: Sequence[Numbered[FinishedRequest]]) -> RequestRow:
    """Give the middle request of a group, which stands for all of it."""
    chosen = middle(group)
    values = [_short(getattr(chosen.record, name)) for name in RequestRow.__struct_fields__[1:-1]]
    return RequestRow(*[chosen.seq, *values, len(group)])


def _short(value: Any) -> Any:
    """Leave out what is below a microsecond: a row is a third shorter."""
    return round(value, 4) if isinstance(value, float) else value


def sketch_of(part: GapSlice) -> SketchBody:
    """One slice; JSON's keys are strings."""
    bins = {str(index): count for index, count in sorted(part.bins.items())}
    return SketchBody("itl_ms", part.lane, part.start_at, ALPHA, part.zero, bins)


def info_of(model: ModelInfo) -> ModelBody:
    """The part of the model's description that the page shows."""
    return ModelBody(*(getattr(model, name) for name in ModelBody.__struct_fields__))
