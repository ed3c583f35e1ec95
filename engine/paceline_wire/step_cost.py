"""What a step is priced by, and the formula of its time.

    T = decode + prefill                                                        tokens
    C = sum of the context lengths of the decodes                               tokens
    A = sum over prefill chunks of  chunk * (tokens before it + chunk / 2)      query-key pairs
    t = th0 + th1*T + th2*max(0, T - h) + th3*C/1e3 + th4*A/1e6                 milliseconds

Engine, simulator, tuner and command line all compute by this module. It is pure and needs nothing
but msgspec. The functions take plain numbers or whole NumPy columns, and Numba can compile them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Quantity = TypeVar("Quantity", float, "npt.NDArray[np.float64]")

NUM_TERMS = 5
KNEE_TOKENS = 256
"""Where a GPU turns from reading weights to multiplying: the ridge point to start from."""


class StepFeatures(msgspec.Struct, frozen=True, gc=False):
    """The features of one step that its time is predicted from."""

    decode: int
    """Sequences that decode one token each."""
    prefill: int
    """Uncached prompt tokens; draft tokens to verify count as such."""
    context: int
    """C: sum of the context lengths of the decodes, tokens."""
    attention: int
    """A: sum over prefill chunks of chunk * (tokens before it + chunk / 2)."""

    @property
    def tokens(self) -> int:
        """T: all tokens of the step."""
        return self.decode + self.prefill

    def measured(self, wall_ms: float) -> "MeasuredStep":
        """The step with the time that it took."""
        return MeasuredStep(self.decode, self.prefill, self.context, self.attention, wall_ms)


class MeasuredStep(StepFeatures, frozen=True, gc=False):
    """A step and the time that it took."""

    wall_ms: float = msgspec.field(name="ms")


@dataclass(frozen=True, slots=True)
class StepModel:
    """The coefficients of one step-time line, assumed or fitted."""

    theta: tuple[float, float, float, float, float]
    """th0 (ms), th1 and th2 (ms/token), th3 (ms/1,000 context tokens), th4 (ms/1e6 pairs)."""
    knee: int = KNEE_TOKENS
    """h: tokens above which each costs th2 more."""

    def ms(self, step: StepFeatures) -> float:
        """Predict one step, before any correction."""
        return step_ms(self.theta, self.knee, step.tokens, step.context, step.attention)

    def scaled(self, factor: float) -> "StepModel":
        """The same shape on hardware `factor` times as slow."""
        return step_model([value * factor for value in self.theta], self.knee)


def step_model(theta: Sequence[float], knee: int) -> StepModel:
    """Build a model from any five numbers. Raises ValueError for more or fewer."""
    if len(theta) != NUM_TERMS:
        raise ValueError(f"theta must hold {NUM_TERMS} coefficients, got {len(theta)}")
    th0, th1, th2, th3, th4 = (float(value) for value in theta)
    return StepModel((th0, th1, th2, th3, th4), knee)


def chunk_attention(chunk: float, before: float) -> float:
    """Query-key pairs of a prefill chunk after `before` tokens of its prompt: its part of A."""
    return chunk * (before + chunk / 2)


def step_terms(
    knee: float, tokens: Quantity, context: Quantity, attention: Quantity
) -> tuple[float, Quantity, Quantity, Quantity, Quantity]:
    """What each of the five coefficients multiplies."""
    above = tokens - knee
    return 1.0, tokens, above * (above > 0), context * 1e-3, attention * 1e-6


def step_ms(
    theta: Sequence[float],
    knee: float,
    tokens: Quantity,
    context: Quantity,
    attention: Quantity,
) -> Quantity:
    """Predict the time of a step, before any correction."""
    th0, th1, th2, th3, th4 = theta
    # The sum of `step_terms`, without a call: a decision of the tuner asks forty times.
    above = tokens - knee
    above = above * (above > 0)
    return th0 + th1 * tokens + th2 * above + th3 * (context * 1e-3) + th4 * (attention * 1e-6)


def correction_bin(tokens: float, bin_tokens: int, num_bins: int) -> int:
    """Which correction a step of so many tokens is multiplied by; the last holds all larger."""
    return min(int(max(tokens - 1, 0) // bin_tokens), num_bins - 1)
