"""A change of limits as it was predicted, beside what came of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure as it was predicted and as it came."""

    predicted: float
    measured: float
    error_ratio: float
    """Measured / predicted - 1."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one change; None where the period after it did not show a figure."""

    of: float
    """Unix seconds of the decision that is judged."""
    steps: int
    """That were compared."""
    step_ms: Compared | None = None
    """Mean of the steps that ran, each predicted by its own shape."""
    ttft_ms: Compared | None = None
    """Slowest first token; what was predicted has a margin of 1.3."""
    capacity_rps: Compared | None = None
    """Only of a pod whose queue never emptied."""
