"""The status of an InferenceService: what a person, Flux, Argo CD and an autoscaler read."""

from typing import Annotated, Literal

from pydantic import Field

from paceline_api.adapter_spec import MAX_ADAPTERS
from paceline_api.part import Part, listed
from paceline_api.sla_spec import MAX_PROMPT_CLASSES
from paceline_tuner.condition import Truth
from paceline_tuner.service_report import ExperimentVerdict
from paceline_tuner.service_spec import ExperimentKind, Mode

Line = Annotated[str, Field(max_length=1024)]
Word = Annotated[str, Field(max_length=253)]
ImageName = Annotated[str, Field(max_length=512)]
RolloutPhase = Literal["Waiting", "Canary", "Rolling", "Done", "RolledBack"]
RolloutVerdict = Literal["Running", "Better", "NoDifference", "Worse", "Failed"]
Time = Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]


class ConditionEntry(Part):
    """One `status.conditions` entry, as Kubernetes defines it."""

    type: Annotated[str, Field(max_length=316)]
    status: Truth
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The generation that this condition speaks of."""
    last_transition_time: Time
    """When `status` last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    message: Annotated[str, Field(max_length=2048)]


class QuantileLatency(Part):
    """The quantile that sla.objective asks for."""

    quantile: Word
    """The objective, such as `0.95`."""
    ttft: Word | None = None
    tpot: Word | None = None
    itl: Word | None = None
    e2e: Annotated[Word | None, Field(alias="e2e")] = None


class ObservedLatency(Part):
    """What was measured over tuning.window, as durations such as `48.2ms`."""

    ttft_p99: Word | None = None
    tpot_p99: Word | None = None
    itl_p99: Word | None = None
    e2e_p99: Annotated[Word | None, Field(alias="e2eP99")] = None
    """Absent unless sla.e2e is declared."""
    at_objective: QuantileLatency | None = None
    """The same at the quantile that the objective asks for; absent where that is 0.99."""
    samples: int | None = None
    """Offered requests in the window."""
    window_end: Time | None = None


class ServiceCapacity(Part):
    """What the service can carry within its SLA."""

    requests_per_second: Word | None = None
    """At the present mix of lengths, all pods together."""
    utilization: Word | None = None
    """Arrivals as a share of it, such as `0.62`."""


class ServiceThroughput(Part):
    """What the service gave over tuning.window, all pods together."""

    output_tokens_per_second: Word | None = None
    """Tokens that the pods generated, such as `412`."""
    prompt_tokens_per_second: Word | None = None
    """Tokens of the prompts that the engines began, cached ones included."""
    requests_per_second: Word | None = None
    """Requests that were served to their end."""
    cost_per_million_output_tokens: Word | None = None
    """What the pods cost by resources.pricePerHour, over the tokens that they generated. Absent
    without a price, and while no token is generated."""
    cost_per_million_tokens: Word | None = None
    """The same over tokens of prompts and answers together."""


class PromptClassStatus(Part):
    """First tokens of one class of ttft.byPromptTokens, over tuning.window."""

    prompt_tokens: Word
    """Tokens of its prompts, such as `1-2000`; `2001-` is of the last class."""
    target: Word
    """The declared p99."""
    ttft: Word | None = None
    """The quantile that sla.objective asks for, measured."""
    requests: int | None = None
    """Offered requests."""
    attainment: Word | None = None
    """Share of them whose first token came within the target, such as `0.994`."""
    verdict: Word | None = None
    """Meeting, Violating, Idle or Unknown."""


PromptClasses = Annotated[
    list[PromptClassStatus],
    Field(
        json_schema_extra=listed("map", max_items=MAX_PROMPT_CLASSES, keys=("promptTokens",)),
    ),
]


class LaneStatus(Part):
    """One lane's SLA as measured."""

    observed: ObservedLatency | None = None
    attainment: Word | None = None
    """Share of its offered requests that met every target."""
    verdict: Word | None = None
    """Meeting, Violating, Idle or Unknown."""
    ttft_by_prompt_tokens: PromptClasses | None = None
    """Absent where its ttft has one target."""


class SlaStatus(Part):
    """The SLA as measured."""

    observed: ObservedLatency | None = None
    attainment: Word | None = None
    """Share of the offered requests that met every target, such as `0.994`."""
    capacity: ServiceCapacity | None = None
    ttft_by_prompt_tokens: PromptClasses | None = None
    """Absent where sla.ttft has one target."""
    batch: LaneStatus | None = None
    """The batch lane by `lanes.batch.sla`; absent where that is not declared."""


class ChangeEntry(Part):
    """One change of a pod's limits."""

    time: Time
    pod: Word
    from_: Annotated[Word, Field(alias="from")]
    """`BATCH/TOKENS` before."""
    to: Word
    """`BATCH/TOKENS` after."""
    reason: Line


class PodTuning(Part):
    """One pod's limits and what was measured under them."""

    name: Word
    node: Word | None = None
    batch_size: int | None = None
    token_budget: int | None = None
    running: int | None = None
    waiting: int | None = None
    ttft_p99: Word | None = None
    tpot_p99: Word | None = None
    e2e_p99: Annotated[Word | None, Field(alias="e2eP99")] = None
    """Absent unless sla.e2e is declared."""
    at_objective: QuantileLatency | None = None
    """Absent where the objective is 0.99."""
    phase: Word | None = None
    """ColdStart, Learning, Tracking, Transition, Backoff, Frozen or Unattainable."""
    binding: Word | None = None
    """The constraint that decided."""
    verdict: Word | None = None
    """Meeting, Violating, Idle or Unknown."""
    reason: Line | None = None
    last_change: Time | None = None


class TuningSummary(Part):
    """The limits over all pods: one number, or the lowest and the highest."""

    batch_size: Word | None = None
    token_budget: Word | None = None


class HeldRange(Part):
    """Bounds of one live limit."""

    min: int
    max: int | None = None
    initial: int | None = None


class HeldPolicy(Part):
    """The policy that a rollback returns to."""

    mode: Mode
    step_margin: Word
    batch_size: HeldRange
    token_budget: HeldRange


class ArmCounts(Part):
    """Compared requests of the declared policy and of the candidate."""

    base: int = 0
    candidate: int = 0


class ArmRates(Part):
    """Miss rates of the declared policy and of the candidate."""

    base: Word | None = None
    candidate: Word | None = None


class ExperimentStatus(Part):
    """How an experiment, or the canary of a changed policy, stands."""

    name: Word
    kind: ExperimentKind
    """Rollout is the canary of a change of the declared policy."""
    verdict: ExperimentVerdict
    since: Time | None = None
    """When it began; absent while it waits."""
    candidate_pods: (
        Annotated[list[Word], Field(json_schema_extra=listed("atomic", max_items=100))] | None
    ) = None
    requests: ArmCounts | None = None
    """Requests that were compared."""
    miss_rate: ArmRates | None = None
    """Share of them that missed the SLA, such as `0.0123`."""
    reason: Line
    """What was found, and what to do."""
    held: HeldPolicy | None = None
    """The policy before the change of a Rollout, which a rollback returns to."""


class TuningStatus(Part):
    """The limits that the tuner holds, and its last changes."""

    summary: TuningSummary | None = None
    recommended_replicas: int | None = None
    """Replicas with which the SLA will hold when a pod that is asked for now is ready."""
    last_change_time: Time | None = None
    pods_omitted: int | None = None
    """Pods beyond the hundred that are listed."""
    pods: (
        Annotated[
            list[PodTuning], Field(json_schema_extra=listed("map", max_items=100, keys=("name",)))
        ]
        | None
    ) = None
    history: (
        Annotated[list[ChangeEntry], Field(json_schema_extra=listed("atomic", max_items=5))] | None
    ) = None
    """The newest changes, newest first."""
    experiment: ExperimentStatus | None = None


class AdapterStatus(Part):
    """Which pods have loaded a LoRA adapter."""

    name: Word
    loaded_pods: int
    """Pods that serve it."""
    pods: int
    """Pods that were asked."""
    message: Line | None = None
    """Why a pod refuses it, in the engine's words."""


class EngineStatus(Part):
    """The engine that runs."""

    image_digest: Annotated[str, Field(max_length=512)] | None = None
    model_revision: Word | None = None


class LoadingStatus(Part):
    """How far the pod is that has furthest to go until it serves."""

    stage: Word
    """In the engine's words: `fetching` is the download, then `loading weights` and others."""
    percent: Annotated[int, Field(ge=0, le=100)]
    """How much of this stage is done."""


class Images(Part):
    """The images of one pod."""

    engine: ImageName
    sidecar: ImageName


class RolloutStatus(Part):
    """How new images come to the pods, or why they went back."""

    phase: RolloutPhase
    """Waiting: for another service's rollout, or for pods to compare with. Canary: one pod tries
    the images. Rolling: all pods get them. Done: all have them. RolledBack: no pod has them."""
    images: Images
    """The new images."""
    verdict: RolloutVerdict | None = None
    """Of the canary beside the other pods: Running, Better, NoDifference, Worse, or Failed where it
    could not serve."""
    reason: Line
    """What was found, or what it waits for."""
    since: Time
    """When the phase began."""


class Status(Part):
    """Written by the operator on a transition, and at most every 30 s for its numbers."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    observed_config_hash: Word | None = None
    """Hash of the hot fields that every pod has acknowledged."""
    replicas: int | None = None
    ready_replicas: int | None = None
    updated_replicas: int | None = None
    selector: Annotated[str, Field(max_length=1024)] | None = None
    """Label selector of the pods, for /scale."""
    url: Annotated[str, Field(max_length=512)] | None = None
    """Base URL of the OpenAI API, within the cluster."""
    conditions: (
        Annotated[
            list[ConditionEntry],
            Field(json_schema_extra=listed("map", max_items=16, keys=("type",))),
        ]
        | None
    ) = None
    sla: SlaStatus | None = None
    throughput: ServiceThroughput | None = None
    tuning: TuningStatus | None = None
    engine: EngineStatus | None = None
    loading: LoadingStatus | None = None
    """Only while a pod loads its model."""
    images: Images | None = None
    """The images that the pods have, and keep when the operator is upgraded."""
    rollout: RolloutStatus | None = None
    """The newest change of the images; absent where there was none."""
    adapters: (
        Annotated[
            list[AdapterStatus],
            Field(json_schema_extra=listed("map", max_items=MAX_ADAPTERS, keys=("name",))),
        ]
        | None
    ) = None
    """One for each of `spec.adapters`."""
