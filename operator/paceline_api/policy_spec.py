"""`spec.tuning`: how the operator moves the limits of each pod, and a candidate to compare."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from paceline_api.part import Part, Rule, between
from paceline_api.units import Duration, Fraction
from paceline_tuner.service_spec import Mode, OnTelemetryLoss, RolloutMode

Margin = Annotated[
    str, Field(pattern=r"^(0\.9[0-9]{0,3}|1(\.0[0-9]{0,3})?|1\.10{0,3})$", max_length=6)
]
"""From 0.9 to 1.1, as a string: custom resources hold no floats."""

_BOUNDS = (
    Rule("has(self.min) || has(self.max)", "name min, max or both"),
    Rule(
        "!has(self.min) || !has(self.max) || self.min <= self.max",
        "must not be below min",
        ".max",
    ),
)


class CandidateBatchSize(Part):
    """Other bounds of the live max batch size; what is left out stays as declared."""

    cel_rules: ClassVar = _BOUNDS

    min: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Replaces tuning.batchSize.min."""
    max: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Replaces tuning.batchSize.max."""


class CandidateTokenBudget(Part):
    """Other bounds of the live token budget; what is left out stays as declared."""

    cel_rules: ClassVar = _BOUNDS

    min: Annotated[int, Field(ge=1, le=262_144)] | None = None
    """Replaces tuning.tokenBudget.min."""
    max: Annotated[int, Field(ge=1, le=262_144)] | None = None
    """Replaces tuning.tokenBudget.max."""


class CandidatePolicy(Part):
    """What the candidate changes of the declared tuning."""

    cel_rules: ClassVar = (
        Rule(
            "has(self.mode) || has(self.stepMargin) || has(self.batchSize) ||"
            " has(self.tokenBudget)",
            "change at least one of mode, stepMargin, batchSize and tokenBudget",
        ),
    )

    mode: Mode | None = None
    """Replaces tuning.mode."""
    step_margin: Margin | None = None
    """Replaces tuning.stepMargin."""
    batch_size: CandidateBatchSize | None = None
    token_budget: CandidateTokenBudget | None = None


class ExperimentSpec(Part):
    """Compares a candidate policy with the declared one, allowing for unequal load."""

    cel_rules: ClassVar = (
        between("minDuration", "1m", "24h"),
        between("maxDuration", "1m", "168h"),
        Rule(
            "duration(self.minDuration) <= duration(self.maxDuration)",
            "must not be below minDuration",
            ".maxDuration",
        ),
        Rule(
            "double(self.share) >= 0.1 && double(self.share) <= 0.9",
            "must lie between 0.1 and 0.9: both arms need pods",
            ".share",
        ),
    )

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", max_length=63)]
    """Names this comparison; after a verdict only another name starts another one."""
    kind: Literal["Canary", "AB"] = "Canary"
    """Canary tries the candidate on one pod, then on all; AB on a share of the pods."""
    policy: CandidatePolicy
    """The candidate."""
    share: Fraction = "0.5"
    """Share of the pods that get the candidate of an AB."""
    min_duration: Duration = "5m"
    """How long to compare before the candidate may be called better; worse is said at once."""
    max_duration: Duration = "1h"
    """How long to compare before the candidate is called no different."""


_ORDERED = (
    Rule(
        "!has(self.max) || self.min <= self.max",
        "must not be below min",
        ".max",
    ),
    Rule(
        "!has(self.initial) ||"
        " (self.initial >= self.min && (!has(self.max) || self.initial <= self.max))",
        "must lie between min and max",
        ".initial",
    ),
)


class BatchSizeRange(Part):
    """Bounds of the live max batch size: running sequences."""

    cel_rules: ClassVar = _ORDERED

    min: Annotated[int, Field(ge=1, le=4096)] = 1
    """The lowest that the tuner sets."""
    max: Annotated[int, Field(ge=1, le=4096)] | None = None
    """The highest that the tuner sets; engine.capacity.maxBatchSize when absent."""
    initial: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Where a fresh pod starts; max when absent. Mode Fixed holds it."""


class TokenBudgetRange(Part):
    """Bounds of the live token budget: tokens in one step."""

    cel_rules: ClassVar = _ORDERED

    min: Annotated[int, Field(ge=1, le=262_144)] = 64
    """The lowest that the tuner sets."""
    max: Annotated[int, Field(ge=1, le=262_144)] | None = None
    """The highest that the tuner sets; engine.capacity.maxTokenBudget when absent."""
    initial: Annotated[int, Field(ge=1, le=262_144)] | None = None
    """Where a fresh pod starts; max when absent. Mode Fixed holds it."""


class Tuning(Part):
    """How the operator moves the two limits of each pod."""

    cel_rules: ClassVar = (
        Rule(
            "!has(self.batchSize.max) || !has(self.tokenBudget.max) ||"
            " self.tokenBudget.max >= self.batchSize.max",
            "must be at least batchSize.max: a step holds one token per running sequence",
            ".tokenBudget.max",
        ),
        between("interval", "1s", "60s"),
        between("window", "10s", "1h"),
    )

    mode: Mode = "Auto"
    """Auto applies, Observe computes and reports, Fixed holds `initial`."""
    batch_size: BatchSizeRange = BatchSizeRange()
    token_budget: TokenBudgetRange = TokenBudgetRange()
    interval: Duration = "5s"
    """Time between two decisions."""
    window: Duration = "60s"
    """Time over which the percentiles in status are taken."""
    on_telemetry_loss: OnTelemetryLoss = "Hold"
    """What a pod that cannot be read keeps: its last limits, or its last certified ones."""
    step_margin: Margin = "1.0"
    """Multiplies the step target: below 1 is more careful than the SLA asks for, above 1 bolder."""
    rollout: RolloutMode = "All"
    """How a change of mode, stepMargin or bounds goes out: Canary tries it on one pod first."""
    experiment: ExperimentSpec | None = None
    """A candidate policy to compare with this one."""
