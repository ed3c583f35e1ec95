"""AttentionBackend (Protocol): how a device attends over the paged KV cache."""

from typing import Protocol

from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.model.decoder import Attention


class AttentionBackend(Protocol):
    """Holds the KV cache of one model on one device."""

    def plan(self, step: StepTensors) -> Attention:
        """Prepare once what every layer of the step shares."""
        ...
