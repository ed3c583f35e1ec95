"""`tuning.experiment`: a candidate policy that some pods get, to be compared with the rest."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from paceline_api.part import Part, Rule, between
from paceline_api.units import Duration, Fraction
from paceline_tuner.model import Mode

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
    max: Annotated[int, Field(ge=1, le=4096)] | None = None


class CandidateTokenBudget(Part):
    """Other bounds of the live token budget; what is left out stays as declared."""

    cel_rules: ClassVar = _BOUNDS

    min: Annotated[int, Field(ge=1, le=262_144)] | None = None
    max: Annotated[int, Field(ge=1, le=262_144)] | None = None


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
    """Instead of tuning.mode."""
    step_margin: Margin | None = None
    """Instead of tuning.stepMargin."""
    batch_size: CandidateBatchSize | None = None
    token_budget: CandidateTokenBudget | None = None


class Experiment(Part):
    """Compares a candidate policy with the declared one, at matched load."""

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
    """Of this comparison; after a verdict only another name starts another one."""
    kind: Literal["Canary", "AB"] = "Canary"
    """Canary tries the candidate on one pod, then on all; AB on a share of the pods."""
    policy: CandidatePolicy
    """The candidate."""
    share: Fraction = "0.5"
    """Of the pods that get the candidate of an AB."""
    min_duration: Duration = "5m"
    """Before the candidate may be called better; worse is said at once."""
    max_duration: Duration = "1h"
    """After which it is called no different."""
