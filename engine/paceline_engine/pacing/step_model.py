"""The step-time form: five coefficients and a knee, linear in what a step computes.

t(x) = th0 + th1*T + th2*max(0, T - h) + th3*C/1e3 + th4*A/1e6      milliseconds
"""

from collections.abc import Sequence
from dataclasses import dataclass

NUM_TERMS = 5
KNEE_TOKENS = 256
"""Where a GPU turns from reading weights to multiplying: the ridge point to start from."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """One fitted (or assumed) step-time line."""

    theta: tuple[float, float, float, float, float]
    """th0 (ms), th1 and th2 (ms/token), th3 (ms/1,000 context tokens), th4 (ms/1e6 pairs)."""
    knee: int = KNEE_TOKENS

    def ms(self, *, tokens: float, context: float, attention: float) -> float:
        """Predict one step, before any correction."""
        th0, th1, th2, th3, th4 = self.theta
        above = tokens - self.knee
        return (
            th0
            + th1 * tokens
            + (th2 * above if above > 0 else 0.0)
            + th3 * context * 1e-3
            + th4 * attention * 1e-6
        )

    def scaled(self, factor: float) -> "StepModel":
        """The same shape on hardware `factor` times as slow."""
        th0, th1, th2, th3, th4 = (value * factor for value in self.theta)
        return StepModel((th0, th1, th2, th3, th4), self.knee)


def features(
    *, tokens: float, context: float, attention: float, knee: int
) -> tuple[float, float, float, float, float]:
    """What the coefficients multiply."""
    return (1.0, tokens, max(0.0, tokens - knee), context * 1e-3, attention * 1e-6)


def step_model(theta: Sequence[float], knee: int) -> StepModel:
    """Build from any five numbers."""
    if len(theta) != NUM_TERMS:
        raise ValueError(f"theta must hold {NUM_TERMS} coefficients, got {len(theta)}")
    th0, th1, th2, th3, th4 = (float(value) for value in theta)
    return StepModel((th0, th1, th2, th3, th4), knee)
