"""AttentionBackend (Protocol): how a device attends over the paged KV cache."""

from typing import Protocol

from paceline_engine.model.decoder import Attention
from paceline_engine.running.inputs import StepInputs


class AttentionBackend(Protocol):
    """Holds the KV cache of one model on one device."""

    def plan(self, inputs: StepInputs) -> Attention:
        """Prepare once what every layer of the step shares."""
        ...
