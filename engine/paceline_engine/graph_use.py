"""How often steps were replayed, and why others were not. Pure."""

from collections import Counter
from dataclasses import dataclass, field

from paceline_engine.scheduling.batch import Batch
from paceline_engine.wire import WhyEager


@dataclass(slots=True)
class GraphUse:
    """Counted since start; nothing where nothing was recorded."""

    replayed: int = 0
    eager: Counter[str] = field(default_factory=Counter)

    def restart(self) -> None:
        """Count from now on: what ran before was no request's."""
        self.replayed = 0
        self.eager.clear()


def why_eager(batch: Batch) -> WhyEager | None:
    """Why a step must be computed op by op: it is no plain decode of every row; None if it is."""
    if batch.num_drafted:
        return "draft"
    if len(batch.slices) > batch.num_decodes:
        return "prefill"
    if any(piece.request.adapter_slot is not None for piece in batch.slices):
        return "adapter"
    if not all(piece.samples for piece in batch.slices):
        return "padding"
    return None
