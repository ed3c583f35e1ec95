"""What the client saw of one request, and percentiles over many."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

Outcome = Literal["ok", "refused", "failed", "timeout", "cancelled"]
"""A client that was planned to leave is `cancelled`: neither served nor missed."""


@dataclass(frozen=True, slots=True)
class ClientRecord:
    """One request, in seconds of the client's monotonic clock."""

    planned_at: float
    """When it should have been sent: TTFT counts from here, so a late client is no excuse."""
    sent_at: float
    token_ats: tuple[float, ...]
    """When each streamed piece of text arrived."""
    finished_at: float
    prompt_tokens: int
    output_tokens: int
    outcome: Outcome
    error: str = ""

    @property
    def ttft_ms(self) -> float | None:
        """Planned sending to first token."""
        return (self.token_ats[0] - self.planned_at) * 1e3 if self.token_ats else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean time of each output token after the first."""
        if self.output_tokens < 2 or len(self.token_ats) < 2:  # noqa: PLR2004 - a gap has two ends
            return None
        return (self.token_ats[-1] - self.token_ats[0]) * 1e3 / (self.output_tokens - 1)

    @property
    def itls_ms(self) -> tuple[float, ...]:
        """Every gap between two pieces of text."""
        return tuple(
            (later - earlier) * 1e3
            for earlier, later in zip(self.token_ats, self.token_ats[1:], strict=False)
        )


def percentile(values: Iterable[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed; None without values."""
    ordered: Sequence[float] = sorted(values)
    if not ordered:
        return None
    return ordered[min(max(ceil(share * len(ordered)), 1), len(ordered)) - 1]
