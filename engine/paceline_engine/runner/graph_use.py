"""How often steps were replayed from CUDA graphs, and why others were not. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from paceline_engine.core.batch import Batch
from paceline_wire import WhyEager

ExecutionMode = Literal["decode graph", "mixed graph", "eager"]
"""How a step is computed: by a graph of decodes, by one of mixed steps, or op by op."""


@dataclass(slots=True)
class GraphUse:
    """Steps by how they were computed, since start; all 0 where nothing was captured."""

    decodes: int = 0
    mixed: int = 0
    eager: Counter[str] = field(default_factory=Counter)

    def count(self, mode: ExecutionMode, why: WhyEager | None) -> None:
        """Count a step; `why` it is no plain decode of every row."""
        if mode == "mixed graph":
            self.mixed += 1
        elif why is None:
            self.decodes += 1
        else:
            self.eager[why] += 1

    def restart(self) -> None:
        """Count from now on: the steps before were no request's."""
        self.decodes = 0
        self.mixed = 0
        self.eager.clear()


def why_eager(batch: Batch) -> WhyEager | None:
    """Say why a step is not a plain decode of every row; None if it is."""
    if batch.num_drafted:
        return "draft"
    if len(batch.chunks) > batch.num_decodes:
        return "prefill"
    if not all(chunk.samples for chunk in batch.chunks):
        return "padding"
    return None
