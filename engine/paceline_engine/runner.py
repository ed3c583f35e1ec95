"""Runner (Protocol): all that the step loop asks of the model and the device."""

from typing import Protocol

from paceline_engine.scheduling.batch import Batch


class Runner(Protocol):
    """Computes one step and samples. Holds the weights and the KV memory."""

    def run(self, batch: Batch) -> list[int | None]:
        """Compute every slice and write its KV; the next token of each slice that samples.

        Aligned with `batch.slices`; None where the slice does not sample.
        """
        ...
