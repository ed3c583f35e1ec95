"""A draft model that is loaded: what runs it, and what it is."""

from dataclasses import dataclass

from paceline_engine.core.batch import Runner
from paceline_wire import ModelInfo


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """On the model's device, with a cache beside the model's."""

    runner: Runner
    info: ModelInfo
