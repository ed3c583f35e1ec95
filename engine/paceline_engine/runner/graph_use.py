"""How often steps were replayed, and why others were not. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from paceline_engine.core.batch import Batch
from paceline_wire import WhyEager

Way = Literal["replayed", "in pieces", "eager"]
"""How a step is computed: whole from a graph, from graphs between attentions, or op by op."""


@dataclass(slots=True)
class GraphUse:
    """Counted since start; nothing where nothing was recorded."""

    replayed: int = 0
    in_pieces: int = 0
    eager: Counter[str] = field(default_factory=Counter)

    def count(self, way: Way, why: WhyEager | None) -> None:
        """Count a step; `why` it was not replayed whole."""
        if way == "in pieces":
            self.in_pieces += 1
        elif why is None:
            self.replayed += 1
        else:
            self.eager[why] += 1

    def restart(self) -> None:
        """Count from now on: what ran before was no request's."""
        self.replayed = 0
        self.in_pieces = 0
        self.eager.clear()


def why_eager(batch: Batch) -> WhyEager | None:
    """Why a step is not replayed whole: it is no plain decode of every row; None if it is.

    An adapter comes first: nothing that was recorded has any.
    """
    if any(piece.request.adapter_slot is not None for piece in batch.chunks):
        return "adapter"
    if batch.num_drafted:
        return "draft"
    if len(batch.chunks) > batch.num_decodes:
        return "prefill"
    if not all(piece.samples for piece in batch.chunks):
        return "padding"
    return None
