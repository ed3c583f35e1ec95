"""Chooses the knee of the step model, where its slope changes, by the prediction error."""

import math
from collections.abc import Sequence
from dataclasses import replace

from paceline_engine.pacing.fit import fit
from paceline_engine.pacing.prior import Prior
from paceline_wire import MeasuredStep

_KNEES = (128, 256, 512)
_GAIN = 0.9  # of the holdout error: a knee that is no better by a tenth is noise
_FIRST_STEPS = 2_000
_STEPS = 20_000
_SECONDS = 3600.0


class KneeWatch:
    """Says when to look at the knee again: at 2,000 steps, then each 20,000, or each hour."""

    __slots__ = ("_looked_at", "_looked_at_step")

    def __init__(self) -> None:
        """Look first when there is enough to judge by."""
        self._looked_at = math.inf
        self._looked_at_step = _FIRST_STEPS - _STEPS

    def is_due(self, steps: int, at: float) -> bool:
        """Tell whether the knee is due for a look after `steps` steps, and note the look."""
        waited_s = at - self._looked_at if math.isfinite(at) else 0.0
        if steps - self._looked_at_step < _STEPS and waited_s < _SECONDS:
            return False
        self._looked_at_step = steps
        self._looked_at = at if math.isfinite(at) else math.inf
        return True


def best_knee(
    training: Sequence[MeasuredStep], holdout: Sequence[MeasuredStep], prior: Prior
) -> int:
    """The knee whose accepted fit misses the newest samples least; the prior's where it may stay.

    Costs a fit for each candidate.
    """
    held = fit(training, holdout, prior)
    best, least = prior.model.knee, held.holdout_mape * _GAIN
    for knee in _KNEES:
        if knee == prior.model.knee:
            continue
        tried = fit(training, holdout, with_knee(prior, knee))
        if not tried.refusal and tried.holdout_mape < least:
            best, least = knee, tried.holdout_mape
    return best


def with_knee(prior: Prior, knee: int) -> Prior:
    """The same prior, turning elsewhere."""
    return replace(prior, model=replace(prior.model, knee=knee))
