"""What the scheduler says of the next step."""

from dataclasses import dataclass

from paceline_engine.core.batch import Batch
from paceline_engine.kv_cache.swap import BlockCopy


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next step does."""

    batch: Batch
    token_total: int
    """Tokens that the step might have held."""
    preemptions: int
    """Requests that lost their blocks to decodes for which none was free."""
    context: int
    """Sum of the context lengths of the decodes, tokens."""
    copies: tuple[BlockCopy, ...] = ()
    """To and from host memory, before the step runs."""
    draft_ms: float = 0.0
    """Time that guesses have taken already."""
