"""The words between the tuner and those who call it: what is wanted, and what was concluded."""

from dataclasses import dataclass
from typing import Literal

from paceline_tuner.compared import Outcome

Mode = Literal["Auto", "Observe", "Fixed"]
Phase = Literal[
    "ColdStart", "Learning", "Tracking", "Transition", "Backoff", "Frozen", "Unattainable"
]
Verdict = Literal["Meeting", "Violating", "Idle", "Unknown"]
ConditionStatus = Literal["True", "False", "Unknown"]
Arm = Literal["base", "candidate"]
ExperimentKind = Literal["Canary", "AB", "Rollout"]
"""A Rollout is the canary of a change of the declared policy."""
OnTelemetryLoss = Literal["Hold", "RevertToCertified"]
RolloutMode = Literal["All", "Canary"]
ConditionType = Literal[
    "TelemetryAvailable", "SLAMet", "SLAAchievable", "DeviceHealthy", "TuningActive"
]
ExperimentVerdict = Literal["Running", "Better", "NoDifference", "Worse", "Aborted"]


@dataclass(frozen=True, slots=True)
class SLA:
    """Targets in milliseconds; None where the service declares none."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    objective: float = 0.99
    """Share of offered requests that must meet every target."""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of one live limit; `max` None is the pod's capacity."""

    min: int
    max: int | None = None
    initial: int | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """What the sidecar refuses at the door."""

    max_queued_requests: int = 1024
    max_queued_tokens: int | None = None
    reject_at: float = 0.8
    request_timeout_s: float = 60.0
    shed_hopeless: bool = True


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that the engine is to have."""

    name: str
    path: str
    """As the runtime API writes it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a pod's limits are chosen: what an experiment compares two of."""

    mode: Mode
    step_margin: float
    """Multiplies the step target."""
    batch_size: Range
    token_budget: Range


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a candidate changes of the declared policy; None keeps what is declared."""

    mode: Mode | None = None
    step_margin: float | None = None
    min_batch_size: int | None = None
    max_batch_size: int | None = None
    min_token_budget: int | None = None
    max_token_budget: int | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A declared comparison of the declared policy with a candidate."""

    name: str
    kind: ExperimentKind
    overrides: Overrides
    share: float = 0.5
    """Of the pods that get the candidate in an AB; a canary is one pod."""
    min_s: float = 300.0
    """Before the candidate may be called better."""
    max_s: float = 3600.0
    """After which it is called no different."""


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """The hot part of one InferenceService, as the tuner reads it."""

    sla: SLA
    mode: Mode = "Auto"
    batch_size: Range = Range(min=1)
    token_budget: Range = Range(min=64)
    admission: Admission = Admission()
    interactive_share: float = 0.8
    batch_share: float = 0.2
    batch_sla: SLA | None = None
    """Of the batch lane; without it `sla` is for both lanes."""
    interval_s: float = 5.0
    window_s: float = 60.0
    on_telemetry_loss: OnTelemetryLoss = "Hold"
    paused: bool = False
    step_margin: float = 1.0
    rollout: RolloutMode = "All"
    experiment: Experiment | None = None
    is_candidate: bool = False
    """The pod tries a candidate policy: what it teaches is not for others."""
    adapters: tuple[Adapter, ...] | None = None
    """All of them; None leaves an engine that takes none alone."""
    config_hash: str = ""
    """Of the hot fields: a pod that reports it has acknowledged this configuration."""


@dataclass(frozen=True, slots=True)
class PodTarget:
    """One pod to tune."""

    name: str
    admin_url: str
    """`http://10.88.0.7:8001`."""
    token: str
    """Bearer token of its runtime API."""
    node: str = ""


@dataclass(frozen=True, slots=True)
class ArmReport:
    """What was compared of one arm."""

    requests: int = 0
    misses: int = 0

    @property
    def miss_rate(self) -> float | None:
        """Share of the requests that missed; None without any."""
        return self.misses / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class ExperimentReport:
    """How an experiment stands."""

    name: str
    kind: ExperimentKind
    verdict: ExperimentVerdict
    reason: str
    """In words: what was found, and what to do."""
    since: float | None = None
    """Unix seconds; None until it has begun."""
    candidate_pods: tuple[str, ...] = ()
    base: ArmReport = ArmReport()
    candidate: ArmReport = ArmReport()
    held: Policy | None = None
    """Of a Rollout: the policy before the change, which a rollback returns to."""


@dataclass(frozen=True, slots=True)
class ServiceTarget:
    """One service to tune, with its ready pods."""

    key: str
    """`namespace/name`."""
    spec: TuningSpec
    pods: tuple[PodTarget, ...]
    told: ExperimentReport | None = None
    """The experiment as status tells of it: what an operator that starts anew goes on from."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What was measured over the spec's window; milliseconds, None without samples."""

    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    itl_p99_ms: float | None
    samples: int
    """Offered requests in the window."""
    attainment: float | None
    """Share of them that met every target; refused, shed, failed and timed out ones missed."""


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane that has targets of its own, over all pods."""

    observed: Observed
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a pod's limits."""

    at: float
    """Unix seconds."""
    pod: str
    from_batch_size: int
    from_token_budget: int
    to_batch_size: int
    to_token_budget: int
    reason: str
    """Why, in words: the binding constraint and the prediction."""


@dataclass(frozen=True, slots=True)
class PodAdapter:
    """How a LoRA adapter stands on one pod, as the pod tells."""

    name: str
    path: str
    state: Literal["loaded", "loading", "refused"]
    message: str = ""
    """Why it is refused."""


@dataclass(frozen=True, slots=True)
class PodReport:
    """One pod, as status and `paceline explain` show it."""

    name: str
    node: str
    batch_size: int | None
    token_budget: int | None
    step_target_ms: float | None
    running: int
    waiting: int
    observed: Observed
    phase: Phase
    binding: str
    """The constraint that decided: `SLA:itl`, `SLA:tpot`, `KV`, `Capacity`, `Bounds`, `Remembered`,
    `None`."""
    verdict: Verdict
    reason: str
    predicted_step_ms: float | None
    model_mape: float | None
    last_change: Change | None
    capacity_rps: float | None
    """λ*: requests per second that this pod can serve within the SLA at the present mix."""
    arrival_rps: float
    acknowledged_hash: str
    error: str
    """Why telemetry or a change failed; empty when neither did."""
    outcome: Outcome | None = None
    """Of the last change, in the tick that learned it."""
    adapters: tuple[PodAdapter, ...] = ()


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """One condition, with a reason from docs/crd.md and no numbers in the message."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """One tick's conclusion for one service: what status is written from."""

    key: str
    at: float
    """Unix seconds."""
    observed: Observed
    capacity_rps: float | None
    utilization: float | None
    recommended_replicas: int | None
    conditions: tuple[ConditionReport, ...]
    pods: tuple[PodReport, ...]
    history: tuple[Change, ...]
    """The newest five, newest first."""
    acknowledged: bool
    """Every pod reports the spec's config hash."""
    experiment: ExperimentReport | None = None
    batch: LaneReport | None = None
    """The batch lane by its own SLA; None where it has none."""
