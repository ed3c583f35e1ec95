"""Builders of tuning in one process."""

from collections.abc import Callable

from paceline_operator.fence import Fence
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Watched
from paceline_operator.rounds import Rounds, ServiceTuner
from paceline_operator.tuning import Tuning


def a_tuning(
    watched: Watched, tuner: ServiceTuner, metrics: Metrics, clock: Callable[[], float]
) -> Tuning:
    """Tune what is watched once `grant` lets it; whatever is concluded is told."""
    tuning = Tuning(watched, lambda _: "secret", lambda _: None, lambda _: True, metrics)
    tuning.tuner = Rounds(tuner, tuning, Fence(clock))
    return tuning
