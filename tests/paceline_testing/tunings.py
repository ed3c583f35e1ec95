"""Builders of tuning in one process."""

from collections.abc import Callable

from paceline_operator.fence import Fence
from paceline_operator.leader import Leader
from paceline_operator.metrics import Metrics
from paceline_operator.observe import Watched
from paceline_operator.rounds import Rounds, ServiceTuner
from paceline_operator.tuning import Tuning
from paceline_testing.fake_cluster import FakeCluster


def a_tuning(
    watched: Watched,
    tuner: ServiceTuner,
    metrics: Metrics,
    clock: Callable[[], float],
    owner: Leader | None = None,
) -> Tuning:
    """Tune what is watched once `grant` lets it; whatever is concluded is told."""
    owner = owner or Leader(FakeCluster(), "paceline", "lease", "a", clock)
    tuning = Tuning(watched, lambda _: "secret", lambda _: None, lambda _: True, metrics, (owner,))
    tuning.tuner = Rounds(tuner, tuning, Fence(clock))
    return tuning
