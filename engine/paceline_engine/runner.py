"""Runner (Protocol): all that the step loop asks of the model and the device."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from paceline_engine.scheduling.batch import Batch

Next: TypeAlias = int | tuple[int, ...] | None
"""What follows a slice: one token; with a draft the guesses that hold and one more; or nothing."""


class Runner(Protocol):
    """Computes one step and samples. Holds the weights and the KV memory."""

    def run(self, batch: Batch) -> Sequence[Next]:
        """Compute every slice and write its KV; what follows each slice that samples.

        Aligned with `batch.slices`; None where the slice does not sample.
        """
        ...
