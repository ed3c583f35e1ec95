"""L4: what pods' conclusions say of the whole service."""

import math
from collections.abc import Sequence

from paceline_tuner.attainment import Counts
from paceline_tuner.decision import Decision
from paceline_tuner.service_report import MeasuredLatency

_HEADROOM = 1.15


def combined(decisions: Sequence[Decision], counts: Counts) -> MeasuredLatency:
    """Measure the service: counts are exact, a p99 is that of the worst pod."""
    seen = [decision.observed for decision in decisions]
    return MeasuredLatency(
        ttft_p99_ms=_worst([o.ttft_p99_ms for o in seen]),
        tpot_p99_ms=_worst([o.tpot_p99_ms for o in seen]),
        itl_p99_ms=_worst([o.itl_p99_ms for o in seen]),
        samples=counts.requests,
        attainment=counts.attainment,
    )


def recommended_replicas(capacities: Sequence[float], arrivals_rps: float) -> int | None:
    """Pods that would serve the present load within the SLA; None without a capacity."""
    total = sum(capacities)
    if total <= 0:
        return None
    per_pod = total / len(capacities)
    return max(1, math.ceil(arrivals_rps * _HEADROOM / per_pod))


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
