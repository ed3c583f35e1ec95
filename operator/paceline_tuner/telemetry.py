"""What a pod's runtime API answers, typed (docs/runtime-api.md). Unknown fields are ignored."""

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from paceline_tuner.service_spec import SLA, PromptClass

AS_WANTED = frozenset({"ok", "cancelled"})
"""Outcomes of requests that were served to their end, or whose clients left."""


class LimitValues(msgspec.Struct, frozen=True):
    """One set of live limits."""

    max_batch_size: int
    token_budget: int
    step_target_ms: float | None = None
    interactive_share: float = 0.8
    batch_share: float = 0.2
    pace_tpot_ms: float | UnsetType | None = UNSET
    """Unset by an engine that knows no slack, and refuses to be sent one."""
    batch_step_target_ms: float | UnsetType | None = UNSET
    """Unset by an engine that knows one target for both lanes."""
    may_pause_batch: bool | UnsetType | None = UNSET
    """Unset, or None, of an engine whose batch lane cannot pause."""


class CapacityValues(msgspec.Struct, frozen=True):
    """What the pod allocated at start."""

    max_batch_size: int
    max_token_budget: int
    num_blocks: int
    block_size: int
    max_model_len: int


class AdmissionValues(msgspec.Struct, frozen=True):
    """Shows whether a sidecar supports limits per API key."""

    max_items_per_request: int | UnsetType = UNSET


class SlaValues(msgspec.Struct, frozen=True):
    """The targets that a sidecar holds requests against, milliseconds."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    objective: float = 0.99
    e2e_p99_ms: float | None = None
    ttft_by_prompt_tokens: tuple[PromptClass, ...] | UnsetType = UNSET
    """Unset by a sidecar that knows one target for all prompts, and refuses to be sent more."""

    @property
    def sla(self) -> SLA:
        """Return the same as a spec has it."""
        classes = self.ttft_by_prompt_tokens
        return SLA(
            ttft_p99_ms=self.ttft_p99_ms,
            tpot_p99_ms=self.tpot_p99_ms,
            itl_p99_ms=self.itl_p99_ms,
            objective=self.objective,
            e2e_p99_ms=self.e2e_p99_ms,
            ttft_by_prompt_tokens=() if classes is UNSET else classes,
        )

    def lacks(self, wanted: SLA) -> bool:
        """Return whether it supports targets by prompt length and holds others than `wanted`."""
        held = self.ttft_by_prompt_tokens
        return held is not UNSET and held != wanted.ttft_by_prompt_tokens


class TunerValues(msgspec.Struct, frozen=True):
    """The tuner's last status, as the pod was told it; empty once its lease has ended."""

    phase: str = ""
    verdict: str = ""
    binding: str = ""


class LimitsAnswer(msgspec.Struct, frozen=True):
    """The answer of `GET` and `PATCH /runtime/limits`."""

    requested: LimitValues
    effective: LimitValues
    certified: LimitValues
    capacity: CapacityValues
    epoch: int
    since_step: int = 0
    lease_expires_s: float | None = None
    lease_lost: bool = False
    clamped: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    config_hash: str | None = None
    instance: str = ""
    sla: SlaValues = SlaValues()
    """What the pod itself holds requests against."""
    batch_sla: SlaValues | None = None
    reason: str | UnsetType = UNSET
    """Unset by a sidecar that refuses to be told why."""
    capacity_rps: float | UnsetType | None = UNSET
    """λ* as the pod was told it; unset by a sidecar that refuses to be told."""
    tuner: TunerValues | UnsetType = UNSET
    """Unset by a sidecar that refuses to be told what the tuner makes of the pod."""
    admission: AdmissionValues = AdmissionValues()


class Load(msgspec.Struct, frozen=True):
    """The engine now; counters are since its start."""

    running: int
    waiting: int
    waiting_tokens: int
    oldest_waiting_s: float = 0.0
    kv_used_blocks: int = 0
    kv_cached_blocks: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    padding_tokens: int = 0
    """Computed only to fill static and dynamic batches up."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    accepted_tokens: int = 0
    """Of the output tokens, those that were drafted."""
    running_output_tokens: tuple[int, ...] = ()
    """Tokens of each running request; an even sample of more than 256."""


class ModelFit(msgspec.Struct, frozen=True):
    """The step-time model that the engine fitted."""

    theta: tuple[float, ...]
    prior: tuple[float, ...]
    knee: int
    correction: tuple[float, ...]
    fast: float
    q_r: float
    samples: int
    mape: float
    valid: bool
    reason: str = ""
    origin: str = ""
    """`prior`, `profile`, `seed` or `fit`; empty of a pod that cannot be seeded."""
    bin_tokens: int = 128
    """How wide a bin of `correction` is; the last one holds all larger steps."""


class EngineInfo(msgspec.Struct, frozen=True):
    """The model and the device it runs on."""

    name: str = ""
    num_parameters: int = 0
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    device: str = ""
    dtype: str = ""
    revision: str = ""
    engine_version: str = ""
    features: tuple[str, ...] = ()
    dtype_reason: str = ""
    """Why it computes in `dtype`."""
    cores: str = ""
    """Threads and where they run, in a sentence; empty on a GPU."""
    ops: str = ""
    """Where the compiled ops come from, in a sentence; empty on a GPU."""


# Records hold numbers and words alone: the garbage collector need not walk a million of them.
class Step(msgspec.Struct, frozen=True, gc=False):
    """One step that ran."""

    seq: int
    at: float
    wall_ms: float
    decode: int
    prefill: int
    context: int
    attention: int
    running: int
    waiting: int
    waiting_tokens: int = 0
    preemptions: int = 0
    epoch: int = 0
    paced_tokens: int = 0
    predicted_ms: float = 0.0
    clean: bool = True
    host_ms: float = 0.0
    kv_used: int = 0
    """Blocks."""
    draft_ms: float = 0.0
    """Time of a draft model before the step, not in `wall_ms`."""
    weight: int = 1
    """Steps that it stands for, in a sample."""
    decodes: int | None = None
    """Of those, how many had a decode; None of a step that stands for itself."""

    @property
    def num_decodes(self) -> int:
        """Steps with a decode among those that it stands for."""
        return int(self.decode > 0) if self.decodes is None else self.decodes


class StepRow(Step, frozen=True, gc=False, array_like=True):
    """A step as a row of values, as samples have it."""


class RequestRecord(msgspec.Struct, frozen=True, gc=False):
    """One request that came to an end."""

    seq: int
    arrived_at: float
    finished_at: float
    prompt_tokens: int
    output_tokens: int
    outcome: str
    lane: str = "interactive"
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_max_ms: float | None = None
    cached_tokens: int = 0
    epoch: int = 0
    weight: int = 1
    """Requests that it stands for, in a sample."""

    @property
    def is_ok(self) -> bool:
        """It was served to its end."""
        return self.outcome == "ok"

    @property
    def is_as_wanted(self) -> bool:
        """It was served to its end, or its client left."""
        return self.outcome in AS_WANTED

    @property
    def e2e_ms(self) -> float | None:
        """Arrival to the end of one that was served, or whose client left; None of others."""
        if not self.is_as_wanted:
            return None
        return (self.finished_at - self.arrived_at) * 1e3


class RequestRow(RequestRecord, frozen=True, gc=False, array_like=True):
    """A request as a row of values, as samples have it."""


class SketchSlice(msgspec.Struct, frozen=True):
    """Five seconds of one latency, in logarithmic bins."""

    metric: str
    lane: str
    start_at: float
    alpha: float
    zero: int
    bins: dict[int, int]


@dataclass(frozen=True, slots=True)
class PodAdapter:
    """The state of a LoRA adapter on one pod, as the pod reports it."""

    name: str
    path: str
    state: Literal["loaded", "loading", "refused"]
    message: str = ""
    """Why it is refused."""


class Telemetry(msgspec.Struct, frozen=True):
    """The answer of `GET /runtime/telemetry`."""

    instance: str
    now: float
    next: int
    lost: int
    ready: bool
    limits: LimitsAnswer | None = None
    load: Load | None = None
    model: ModelFit | None = None
    info: EngineInfo | None = None
    steps: tuple[Step, ...] = ()
    requests: tuple[RequestRecord, ...] = ()
    sketches: tuple[SketchSlice, ...] = ()
    adapters: tuple[PodAdapter, ...] = ()
    """LoRA adapters that were asked for."""
    pod: str = ""
    """The name of the pod that answers; empty of a sidecar that does not say."""
    step_rows: tuple[StepRow, ...] | UnsetType = UNSET
    """A sample in place of `steps`; unset by a sidecar that gives none."""
    request_rows: tuple[RequestRow, ...] = ()
    """A sample in place of `requests`."""


decode_telemetry = msgspec.json.Decoder(Telemetry).decode
decode_limits = msgspec.json.Decoder(LimitsAnswer).decode
