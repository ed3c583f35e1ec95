"""Whether the SLA can be kept on this pod, what stands in the way, and whether replicas help."""

from dataclasses import dataclass
from typing import Literal

from paceline_operator.tuning.capacity import Room
from paceline_operator.tuning.measure import Counts
from paceline_operator.tuning.model import SLA
from paceline_operator.tuning.target import StepTarget
from paceline_operator.tuning.window import Evidence

Obstacle = Literal[
    "",
    "CapacityExceeded",
    "KVBound",
    "TTFTvsTPOTConflict",
    "TPOTFloor",
    "TTFTFloor",
    "DegradedHardware",
]
REPLICAS_HELP: frozenset[Obstacle] = frozenset(
    {"CapacityExceeded", "KVBound", "TTFTvsTPOTConflict"}
)
FLOORS: frozenset[Obstacle] = frozenset({"TPOTFloor", "TTFTFloor"})
_DEGRADED = 1.2
_BURN = 2.0  # times the misses that the objective allows
_QUEUED_SHARE = 0.8  # of the steps: the queue never empties
_MIN_STEPS = 20
_MIN_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Assessment:
    """One decision's view; believed only when it persists."""

    obstacle: Obstacle
    capacity_rps: float | None


def assess(
    sla: SLA,
    evidence: Evidence,
    room: Room,
    target: StepTarget,
    counts: Counts,
    *,
    batch: int,
    budget: int,
    batch_bound: str,
) -> Assessment:
    """Name what keeps the SLA from being met, or nothing."""
    if not evidence.model.valid:
        return Assessment("", None)
    capacity = room.sustainable_rps(batch)
    obstacle = _floor(sla, room, target)
    if not obstacle and _is_burning(sla, counts):
        obstacle = _overload(evidence, room, capacity, batch_bound) or _conflict(
            sla, room, rows=min(batch, max(1, evidence.load.running)), budget=budget
        )
    return Assessment(obstacle, capacity)


def _floor(sla: SLA, room: Room, target: StepTarget) -> Obstacle:
    """One request alone misses its target."""
    if target.is_below_floor:
        return "TPOTFloor"
    if sla.ttft_p99_ms is not None and room.ttft_floor_ms() > sla.ttft_p99_ms:
        return "TTFTFloor"
    return ""


def _is_burning(sla: SLA, counts: Counts) -> bool:
    attainment = counts.attainment
    return (
        counts.requests >= _MIN_SAMPLES
        and attainment is not None
        and 1 - attainment > _BURN * (1 - sla.objective)
    )


def _overload(evidence: Evidence, room: Room, capacity: float, batch_bound: str) -> Obstacle:
    """More arrives than the pod can serve."""
    arrivals, fast = room.demand.arrival_rps, evidence.model.fast
    if arrivals <= capacity and not _queue_never_empties(evidence):
        return ""
    if fast > _DEGRADED and arrivals <= capacity * fast:
        return "DegradedHardware"
    return "KVBound" if batch_bound == "KV" else "CapacityExceeded"


def _conflict(sla: SLA, room: Room, *, rows: int, budget: int) -> Obstacle:
    """Keeping the pace of what runs leaves too little for prompts."""
    if sla.ttft_p99_ms is None or room.prefill_ms(decode=rows, budget=budget) <= sla.ttft_p99_ms:
        return ""
    return "TTFTvsTPOTConflict"


def _queue_never_empties(evidence: Evidence) -> bool:
    steps = evidence.steps
    if len(steps) < _MIN_STEPS or evidence.load.waiting == 0:
        return False
    if steps[0].at > evidence.now - 0.5 * evidence.window_s:
        return False  # a burst is not a load
    return sum(step.waiting > 0 for step in steps) > _QUEUED_SHARE * len(steps)
