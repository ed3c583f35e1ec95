"""L0 and L1: how many tokens a step may hold, by a step-time model fitted live. No torch."""

from paceline_engine.pacing.model_pacer import ModelPacer
from paceline_engine.pacing.pacer import NoPacer, Pacer, StepShape
from paceline_engine.pacing.prior import prior_for
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity

__all__ = ["ModelPacer", "NoPacer", "Pacer", "StepShape", "make_pacer"]


def make_pacer(info: ModelInfo, capacity: Capacity) -> Pacer:
    """Make the pacer for one loaded model on its device."""
    return ModelPacer(prior_for(info), capacity)
