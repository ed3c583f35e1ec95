"""What a step may use: `Capacity`, fixed at start, and `Limits`, swapped whole while serving.

The scheduler reads one `Limits` snapshot at the start of a step and no other, so a change is
seen by the next step and never by half of one.
"""

from dataclasses import dataclass, replace
from typing import Literal

Lane = Literal["interactive", "batch"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What was allocated at start. No limit is ever above it."""

    max_batch_size: int
    """Rows: sequences that can hold KV blocks at once."""
    max_token_budget: int
    """Tokens (decode and prefill) that one step's buffers can hold."""
    num_blocks: int
    """KV blocks in the pool."""
    block_size: int
    """Tokens in one KV block."""
    max_model_len: int
    """Longest sequence, prompt and output, in tokens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The live caps of one engine. A versioned snapshot: `epoch` grows with every change."""

    max_batch_size: int
    """Cap on running sequences. Lowering drains: nothing that runs is touched."""
    token_budget: int
    """Cap on tokens (decode and prefill) in one step."""
    step_target_ms: float | None = None
    """Wanted step time; the pacer picks the largest token total predicted to keep it.

    Rules only where the slack of `pace_tpot_ms` does not.
    """
    interactive_share: float = 0.8
    """Share of the prefill budget that the interactive lane gets while both lanes wait."""
    batch_share: float = 0.2
    """Share of the prefill budget that the batch lane gets while both lanes wait."""
    pace_tpot_ms: float | None = None
    """Wanted mean time per token of each request; steps are paced by the requests' slack then."""
    batch_step_target_ms: float | None = None
    """Wanted step time for the decodes of the batch lane; None where they want what all want.

    Each step keeps the least of what the lanes that decode in it want.
    """
    epoch: int = 0
    """Grows with every accepted change."""


def clamp(wanted: Limits, capacity: Capacity) -> tuple[Limits, tuple[str, ...]]:
    """Bring `wanted` within `capacity`; the second value names each field that was changed."""
    batch = min(max(wanted.max_batch_size, 1), capacity.max_batch_size)
    # A decode step needs one token per running row, or decoding would starve.
    budget = min(max(wanted.token_budget, batch), capacity.max_token_budget)
    fields = {"max_batch_size": batch, "token_budget": budget}
    changed = tuple(name for name, value in fields.items() if getattr(wanted, name) != value)
    return replace(wanted, max_batch_size=batch, token_budget=budget), changed
