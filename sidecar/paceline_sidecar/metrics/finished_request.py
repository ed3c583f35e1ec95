"""The record of one request after its end, and why it missed the SLA."""

from dataclasses import dataclass
from typing import Literal

from paceline_sidecar.hot_config import Sla
from paceline_sidecar.keys import ANYONE, Principal
from paceline_wire.limits import Lane

Outcome = Literal["ok", "refused", "shed", "timeout", "failed", "cancelled"]
MissReason = Literal["ttft", "tpot", "itl", "e2e", "refused", "shed", "timeout", "failed"]


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One request as docs/runtime-api.md gives it; None where a time does not exist."""

    lane: Lane
    arrived_at: float
    finished_at: float
    outcome: Outcome
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_max_ms: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    epoch: int = 0
    slow_gaps: float = 0.0
    """Share of its inter-token gaps that were longer than the target."""
    prefill_ms: float | None = None
    finish_reason: str | None = None
    max_tokens: int = 0
    longest_choice: int | None = None
    """Output tokens of the longest choice of its prompt, said by the one that ends last."""
    num_choices: int = 1
    """How many choices its prompt has, said by the first of them; 0 for the others."""
    principal: Principal = ANYONE
    """Whose key came with it."""

    @property
    def e2e_ms(self) -> float:
        """Milliseconds from its arrival to its end."""
        return (self.finished_at - self.arrived_at) * 1e3


def miss_reason(record: FinishedRequest, sla: Sla) -> MissReason | None:
    """Why a request missed the SLA; None when it met every target."""
    if record.outcome != "ok" and record.outcome != "cancelled":  # noqa: PLR1714 - narrows
        return record.outcome
    if _above(record.ttft_ms, sla.ttft_ms(record.prompt_tokens)):
        return "ttft"
    if _above(record.tpot_ms, sla.tpot_p99_ms):
        return "tpot"
    # The target is a 99th percentile, so of a long answer one gap in a hundred may be longer.
    if sla.itl_p99_ms is not None and record.slow_gaps > 0.01:  # noqa: PLR2004 - as above
        return "itl"
    if _above(record.e2e_ms, sla.e2e_p99_ms):
        return "e2e"
    return None


def _above(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value > target
