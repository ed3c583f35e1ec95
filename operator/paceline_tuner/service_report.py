"""ServiceReport: what one tick concluded about a service and its pods."""

from dataclasses import dataclass
from typing import Literal

from paceline_tuner.condition import Condition
from paceline_tuner.service_spec import ExperimentKind, Policy, prompts_name
from paceline_tuner.telemetry import PodAdapter

Phase = Literal[
    "ColdStart", "Learning", "Tracking", "Transition", "Backoff", "Frozen", "Unattainable"
]
Verdict = Literal["Meeting", "Violating", "Idle", "Unknown"]
Arm = Literal["base", "candidate"]
ExperimentVerdict = Literal["Running", "Better", "NoDifference", "Worse", "Aborted"]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """One quantile of each latency; milliseconds, None without samples."""

    share: float
    """The quantile, such as 0.95."""
    ttft_ms: float | None
    tpot_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None

    @property
    def name(self) -> str:
        """Such as `p95`."""
        return f"p{100 * self.share:g}"


@dataclass(frozen=True, slots=True)
class MeasuredClass:
    """First tokens of the prompts of one class of lengths, over the spec's window."""

    least: int
    """Tokens of its shortest prompts."""
    up_to: int | None
    """Of its longest; None of the last class."""
    target_ms: float
    ttft_ms: float | None
    """The quantile that the objective asks for; None without samples."""
    requests: int
    """Offered ones."""
    missed: int
    """Of those, how many had no first token within the target."""
    verdict: Verdict

    @property
    def name(self) -> str:
        """Its prompts' tokens, such as `1-2000`."""
        return prompts_name(self.least, self.up_to)

    @property
    def attainment(self) -> float | None:
        """Share of its requests whose first token came within the target; None without any."""
        return 1 - self.missed / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """What was measured over the spec's window; milliseconds, None without samples."""

    ttft_p99_ms: float | None
    tpot_p99_ms: float | None
    itl_p99_ms: float | None
    samples: int
    """Offered requests in the window."""
    attainment: float | None
    """Share of them that met every target; refused, shed, failed and timed out ones missed."""
    e2e_p99_ms: float | None = None
    """Measured only where it has a target."""
    at_objective: Quantiles | None = None
    """The quantile that the objective asks for; None where that is 0.99."""
    by_prompt_tokens: tuple[MeasuredClass, ...] = ()
    """Where first tokens have targets by prompt length."""

    @property
    def failing(self) -> tuple[MeasuredClass, ...]:
        """List the classes of prompts whose first tokens come late too often."""
        return tuple(each for each in self.by_prompt_tokens if each.verdict == "Violating")

    @property
    def promised(self) -> Quantiles:
        """The quantile that is held against the targets."""
        return self.at_objective or Quantiles(
            0.99, self.ttft_p99_ms, self.tpot_p99_ms, self.itl_p99_ms, self.e2e_p99_ms
        )


@dataclass(frozen=True, slots=True)
class Throughput:
    """What was given a second, over the spec's window."""

    output_tps: float
    """Tokens generated."""
    prompt_tps: float
    """Tokens of the prompts that were begun, those found in the prefix cache included."""
    finished_rps: float
    """Requests that were served to their end."""

    @property
    def total_tps(self) -> float:
        """Tokens of prompts and answers."""
        return self.output_tps + self.prompt_tps


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What a million tokens costs, in the currency of the price."""

    per_million_output: float
    per_million_total: float
    """Over tokens of prompts and answers together."""


@dataclass(frozen=True, slots=True)
class LimitsChange:
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
    binding: str = ""
    """The constraint that decided, as in `PodReport`."""


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """One figure as it was predicted and as it was measured."""

    predicted: float
    measured: float
    error_ratio: float
    """Measured / predicted - 1."""


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """What became of one change; None where the period after it did not show a figure."""

    of: float
    """Unix seconds of the decision that is judged."""
    steps: int
    """How many steps were compared."""
    step_ms: PredictionCheck | None = None
    """Mean of the steps that ran, each predicted by its own shape."""
    ttft_ms: PredictionCheck | None = None
    """Slowest first token; the prediction has a margin of 1.3."""
    capacity_rps: PredictionCheck | None = None
    """Known only for a pod whose queue never emptied."""


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
    observed: MeasuredLatency
    phase: Phase
    binding: str
    """The constraint that decided: `SLA:itl`, `SLA:tpot`, `KV`, `Capacity`, `Bounds`, `Remembered`,
    `None`."""
    verdict: Verdict
    reason: str
    predicted_step_ms: float | None
    model_mape: float | None
    last_change: LimitsChange | None
    capacity_rps: float | None
    """λ*: requests per second that this pod can serve within the SLA at the present mix."""
    arrival_rps: float
    """Of the load as it is since it last changed."""
    acknowledged_hash: str
    error: str
    """Why telemetry or a change failed; empty when neither did."""
    outcome: ChangeOutcome | None = None
    """What became of the last change, in the tick that learned it."""
    adapters: tuple[PodAdapter, ...] = ()
    refuses_token: bool = False
    """Whether the pod knows another token than ours."""
    counted_rps: float = 0.0
    """What arrived within the last minute, as requests per second."""
    is_swinging: bool = False
    """Its limits went back and forth too often of late."""
    throughput: Throughput | None = None
    """None until its counters were read twice."""


@dataclass(frozen=True, slots=True)
class ArmReport:
    """What was compared of one arm of an experiment."""

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
    """The policy before a Rollout, which a rollback returns to; None for other kinds."""


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane that has targets of its own, over all pods."""

    observed: MeasuredLatency
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ServiceReport:
    """One tick's conclusion for one service: status is written from it."""

    key: str
    at: float
    """Unix seconds."""
    observed: MeasuredLatency
    capacity_rps: float | None
    """λ* of all pods that give telemetry."""
    utilization: float | None
    """Arrivals at those pods as a share of it. It follows the load, not the tuned limits."""
    recommended_replicas: int | None
    conditions: tuple[Condition, ...]
    pods: tuple[PodReport, ...]
    history: tuple[LimitsChange, ...]
    """The newest five, newest first."""
    acknowledged: bool
    """Every pod reports the spec's config hash."""
    experiment: ExperimentReport | None = None
    image_trial: ExperimentReport | None = None
    """How the canary's images compare; None where none are tried."""
    batch: LaneReport | None = None
    """The batch lane by its own SLA; None where it has none."""
    throughput: Throughput | None = None
    """Of all pods that give telemetry."""
    cost: TokenCost | None = None
    """None without a declared price, and while no token is generated."""
