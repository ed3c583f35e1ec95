"""Pacer (Protocol): what the scheduler asks before a step, and reports after it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from paceline_wire import Coefficients, MeasuredStep, StepFeatures, StepModelInfo
from paceline_wire.limits import Limits

Prompt = tuple[int, int]
"""A prompt that the next step may compute: tokens left to compute, and tokens before them."""

MOST_PROMPTS = 8
"""Prompts that are told of one by one: what a step computes of more is small beside them."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """What is known of the next step before its prefill is chosen; its cost is not known yet."""

    decode: int
    """d: decode sequences that will run."""
    context: int
    """C: sum of their context lengths, tokens."""
    prefill_wanted: int
    """Uncached prompt tokens that wait to be prefilled, of requests that could run now."""
    prompts: Sequence[Prompt] = ()
    """The first of those requests, in the order of their turns."""
    slack_ms: float | None = None
    """How far the decodes are ahead of `limits.pace_tpot_ms`; None where none is set."""


class Pacer(Protocol):
    """Keeps a step within `limits.step_target_ms`, or requests at `limits.pace_tpot_ms`."""

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        """Tokens (decode and prefill) this step may hold: within [decode, limits.token_budget]."""
        ...

    def allowed_ms(self, shape: StepShape, limits: Limits) -> float:
        """Predicted time that this step may take to keep its target; infinite without one."""
        ...

    def predict_ms(self, step: StepFeatures) -> float:
        """Predicted step time in milliseconds, without the safety factor q_r."""
        ...

    def observe(self, step: MeasuredStep, *, at: float, clean: bool = True) -> None:
        """Learn from a step that ended `at` (seconds); one that is not clean only counts."""
        ...

    def seed(self, coefficients: Coefficients) -> bool:
        """Start from a model fitted elsewhere; False where there is a fit of its own already."""
        ...

    def learn_profile(self, steps: Sequence[MeasuredStep]) -> bool:
        """Start from steps measured before any request; False where they are of no use."""
        ...

    def info(self) -> StepModelInfo:
        """The fitted model, as telemetry reports it."""
        ...


class NoPacer:
    """Bounds a step by the token budget alone."""

    def token_total(self, shape: StepShape, limits: Limits) -> int:  # noqa: ARG002 - the port's shape
        """Allow the whole budget."""
        return limits.token_budget

    def allowed_ms(self, shape: StepShape, limits: Limits) -> float:  # noqa: ARG002 - the port's shape
        """Keep no target."""
        return inf

    def predict_ms(self, step: StepFeatures) -> float:  # noqa: ARG002 - the port's shape
        """Predict nothing."""
        return 0.0

    def observe(self, step: MeasuredStep, *, at: float, clean: bool = True) -> None:
        """Learn nothing."""

    def seed(self, coefficients: Coefficients) -> bool:  # noqa: ARG002 - the port's shape
        """Start from nothing."""
        return False

    def learn_profile(self, steps: Sequence[MeasuredStep]) -> bool:  # noqa: ARG002 - the port's shape
        """Start from nothing."""
        return False

    def info(self) -> StepModelInfo:
        """Report that there is no model."""
        return StepModelInfo(
            theta=[0.0] * 5,
            prior=[0.0] * 5,
            knee=256,
            correction=[],
            fast=1.0,
            q_r=1.0,
            samples=0,
            mape=0.0,
            valid=False,
            reason="no pacer",
        )
