"""The autoscalers that are compared: one controller on several metrics, and one with foresight."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from autoscale.fleet import Scaler
from autoscale.horizontal import SYNC_S, ByAverage, ByProcessor, ByValue, Horizontal, Seen
from autoscale.pods import Settled
from autoscale.ramp import Ramp

TARGET: Final = 0.8
ORACLE: Final = "oracle: knows the ramp"
OURS: Final = "recommendedReplicas (examples/keda.yaml)"
UTILIZATION: Final = "λ/λ* (examples/hpa.yaml)"


@dataclass(frozen=True, slots=True)
class Oracle:
    """A pod is ready the moment that it is needed, and goes when it is not."""

    ramp: Ramp
    capacity_rps: float
    cold_s: float
    since_s: float = 0.0
    """Before this it knows nothing, and takes the load for steady."""

    def sync(self, now: float, seen: Seen) -> int:
        """Return what the time until a new pod would be ready needs most."""
        del seen
        return self.wanted(now)

    def wanted(self, now: float) -> int:
        """Return the pods of this second."""
        horizon_s = self.cold_s + SYNC_S if now >= self.since_s else 0.0
        return pods_for(self.ramp.most_rps(now, now + horizon_s), self.capacity_rps)


def pods_for(rate_rps: float, capacity_rps: float) -> int:
    """Return the pods that serve a rate with a fifth to spare."""
    return max(1, math.ceil(rate_rps / (TARGET * capacity_rps) - 1e-9))


def _follows(metric: str, *, down_window_s: float = 120.0) -> Horizontal:
    """Take a metric for the number of pods itself, as examples/keda.yaml does."""
    return Horizontal(ByAverage(metric, 1.0, up_tolerance=0.0), down_window_s=down_window_s)


Arm = Callable[[Ramp, Settled, float], Scaler]
"""From the ramp, one settled pod and the cold start in seconds."""

ARMS: Final[Mapping[str, Arm]] = {
    ORACLE: lambda ramp, pod, cold_s: Oracle(ramp, pod.capacity_rps, cold_s),
    "knows the ramp once it has begun": lambda ramp, pod, cold_s: Oracle(
        ramp, pod.capacity_rps, cold_s, since_s=ramp.quiet_s
    ),
    OURS: lambda *_: _follows("recommended"),
    "the same, 90 s before it scales in": lambda *_: _follows("recommended", down_window_s=90.0),
    "the same without looking ahead": lambda *_: _follows("unforeseen"),
    UTILIZATION: lambda *_: Horizontal(ByValue(TARGET), up_window_s=120.0),
    "CPU at 80 %": lambda *_: Horizontal(ByProcessor(TARGET)),
    "5 waiting requests a pod": lambda *_: Horizontal(ByAverage("waiting", 5.0)),
    "requests in flight, by a load test": lambda ramp, pod, cold_s: Horizontal(  # noqa: ARG005
        ByAverage("in_flight", pod.in_flight)
    ),
}
