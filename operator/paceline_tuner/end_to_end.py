"""What an end-to-end target leaves for each token after the first. Pure.

A request waits for its first token and then takes one step for each token after it. No single gap
counts, so steps are not paced: whatever a prompt delays, it brings forward elsewhere. What the
limits decide is how many run beside each other, and so how long a mean step takes.
"""

from dataclasses import dataclass

from paceline_tuner.demand import Demand
from paceline_tuner.service_spec import SLA

FIRST_TOKEN_SHARE = 0.25
"""Of the target, for the first token: as the sidecar has it, which refuses who would wait longer.

Simulated on a laptop at 1.7 times its capacity: with the whole target nearly all of the admitted
requests were late, with a half up to 71 %, with a quarter at most 19 %; as many were served.
"""
_MARGIN = 0.95  # a mean over many steps still varies


@dataclass(frozen=True, slots=True)
class TokenRoom:
    """The longest mean steps with which an answer of the objective's length is in time, ms."""

    queued_ms: float
    """After as long a wait as admission allows."""
    at_once_ms: float
    """Where prompts are computed as they come."""


def token_room(sla: SLA, demand: Demand, *, first_token_ms: float) -> TokenRoom | None:
    """Derive the room that `sla` leaves; None without an end-to-end target.

    `first_token_ms` is what the first token of a long prompt takes at least. The room is 0 where
    no time is left after it.
    """
    if sla.e2e_p99_ms is None:
        return None
    waits_ms = sla.e2e_p99_ms * FIRST_TOKEN_SHARE
    if sla.ttft_p99_ms is not None:
        waits_ms = min(waits_ms, sla.ttft_p99_ms)
    tokens, whole_ms = max(demand.output_high - 1, 1.0), _MARGIN * sla.e2e_p99_ms
    return TokenRoom(
        queued_ms=max(whole_ms - max(waits_ms, first_token_ms), 0.0) / tokens,
        at_once_ms=max(whole_ms - first_token_ms, 0.0) / tokens,
    )
