"""What a user declares of one service, as the tuner reads it: targets, bounds, experiments."""

from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["Auto", "Observe", "Fixed"]
OnTelemetryLoss = Literal["Hold", "RevertToCertified"]
RolloutMode = Literal["All", "Canary"]
Order = Literal["Fifo", "ShortestFirst"]
"""Of the requests that wait in a lane."""
ExperimentKind = Literal["Canary", "AB", "Rollout"]
"""A Rollout is the canary of a change of the declared policy."""


@dataclass(frozen=True, slots=True)
class PromptClass:
    """The first-token target of prompts of some lengths."""

    up_to: int | None
    """Tokens of the longest prompts in it; None of the last class, which has no end."""
    ttft_p99_ms: float


def prompts_name(least: int, up_to: int | None) -> str:
    """Name a class by the tokens of its prompts: `1-2000`, and `2001-` for the last one."""
    return f"{least}-{up_to or ''}"


@dataclass(frozen=True, slots=True)
class SLA:
    """Targets in milliseconds; None where the service declares none."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    objective: float = 0.99
    """Share of offered requests that must meet every target."""
    e2e_p99_ms: float | None = None
    """From a request's arrival to its last token."""
    ttft_by_prompt_tokens: tuple[PromptClass, ...] = ()
    """By prompt length, the shortest first; then `ttft_p99_ms` is the last one's, the loosest."""

    def class_of(self, prompt_tokens: int) -> int:
        """Find the class of a prompt, by its place; 0 where there are no classes."""
        for place, each in enumerate(self.ttft_by_prompt_tokens):
            if each.up_to is None or prompt_tokens <= each.up_to:
                return place
        return max(len(self.ttft_by_prompt_tokens) - 1, 0)

    def ttft_ms(self, prompt_tokens: int) -> float | None:
        """Return the first-token target of a prompt, cached tokens counted; None without one."""
        if not self.ttft_by_prompt_tokens:
            return self.ttft_p99_ms
        return self.ttft_by_prompt_tokens[self.class_of(prompt_tokens)].ttft_p99_ms

    @property
    def tightest_ttft_ms(self) -> float | None:
        """The first-token target of the shortest prompts."""
        return self.ttft_ms(1)

    @property
    def shortest_prompts(self) -> tuple[int, ...]:
        """The tokens of the shortest prompts of each class; of all prompts without classes."""
        ends = [each.up_to for each in self.ttft_by_prompt_tokens[:-1]]
        return (1, *(end + 1 for end in ends if end is not None))


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of one live limit; `max` None is the pod's capacity."""

    min: int
    max: int | None = None
    initial: int | None = None


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What the requests of one API key may do; None sets no bound."""

    weight: int = 1
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """When the sidecar refuses a request instead of queueing it."""

    max_queued_requests: int = 1024
    max_queued_tokens: int | None = None
    reject_at: float = 0.8
    request_timeout_s: float = 60.0
    shed_hopeless: bool = True
    order: Order = "Fifo"
    max_items_per_request: int = 1024
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    per_key: KeyLimits = KeyLimits()
    keys: dict[str, KeyLimits] = field(default_factory=dict)
    """By the name of the key."""


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    """A LoRA adapter that the engine should have loaded."""

    name: str
    path: str
    """As the runtime API writes it."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a pod's limits are chosen. An experiment compares two policies."""

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
class ExperimentPlan:
    """A declared comparison of the declared policy with a candidate."""

    name: str
    kind: ExperimentKind
    overrides: Overrides
    share: float = 0.5
    """Share of the pods that get the candidate in an AB; a canary is one pod."""
    min_s: float = 300.0
    """The candidate is not called better before this."""
    max_s: float = 3600.0
    """After this the candidate is called no different."""


@dataclass(frozen=True, slots=True)
class TuningSpec:
    """The hot part of one InferenceService, as the tuner reads it."""

    sla: SLA
    mode: Mode = "Auto"
    batch_size: Range = Range(min=1)
    token_budget: Range = Range(min=64)
    admission: AdmissionLimits = AdmissionLimits()
    interactive_share: float = 0.8
    batch_share: float = 0.2
    batch_sla: SLA | None = None
    """The batch lane's own targets; without them `sla` is for both lanes."""
    interval_s: float = 5.0
    window_s: float = 60.0
    on_telemetry_loss: OnTelemetryLoss = "Hold"
    paused: bool = False
    step_margin: float = 1.0
    rollout: RolloutMode = "All"
    experiment: ExperimentPlan | None = None
    is_candidate: bool = False
    """The pod tries a candidate policy: what it teaches is not for others."""
    adapters: tuple[WantedAdapter, ...] | None = None
    """The whole list; None leaves an engine alone that takes no adapters."""
    price_per_hour: float | None = None
    """What one pod costs; None where nobody says."""
    config_hash: str = ""
    """Hash of the hot fields: a pod that reports it has acknowledged this configuration."""

    def sla_of(self, lane: str) -> SLA:
        """Return the targets of one lane's requests."""
        return self.batch_sla if lane == "batch" and self.batch_sla is not None else self.sla
