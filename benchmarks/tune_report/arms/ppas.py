"""P-PAS (arXiv 2608.15171): the token budget of each step by how many prompts wait to be computed.

2,048 tokens where two or more prompts are under way beside any decode, else 16,384. It lives in the
scheduler and sees each step; the pacer's port does not name the number of prompts, so it is that of
the step before. It knows no SLA.
"""

from paceline_engine.pacing import NoPacer, StepShape
from paceline_wire import MeasuredStep, ModelInfo, StepRecord
from paceline_wire.limits import Capacity, Limits
from tune_report.arms.arm import Arm

_NARROW, _WIDE = 2048, 16_384
_CROWD = 2


class PPas(NoPacer):
    """The rule, as a pacer."""

    def __init__(self) -> None:
        """No step has run."""
        self._prompts = 0

    def token_total(self, shape: StepShape, limits: Limits) -> int:
        """Narrow in a crowd, else wide."""
        is_crowd = shape.decode > 0 and shape.prefill_wanted > 0 and self._prompts >= _CROWD
        return max(shape.decode, min(limits.token_budget, _NARROW if is_crowd else _WIDE))

    def observe(self, step: MeasuredStep, *, at: float, clean: bool = True) -> None:  # noqa: ARG002 - the port's shape
        """Count the prompts under way and waiting."""
        assert isinstance(step, StepRecord)
        self._prompts = step.running - step.decode + step.waiting


def _make(info: ModelInfo, capacity: Capacity) -> PPas:  # noqa: ARG001 - it needs to know neither
    return PPas()


def p_pas() -> Arm:
    """The rule on pods whose steps can hold its wider budget."""
    return Arm("P-PAS", (256, _WIDE), _make, token_capacity=_WIDE)
