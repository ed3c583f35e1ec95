"""Whether the SLA can be kept on this pod, what stands in the way, and whether replicas help."""

from dataclasses import dataclass
from typing import Literal

from paceline_tuner.burn_window import BurnWindow
from paceline_tuner.capacity import CapacityModel
from paceline_tuner.service_spec import SLA
from paceline_tuner.step_target import StepTarget
from paceline_tuner.window import Evidence

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
_FULL = 0.9  # of the batch size: below, it is not what bounds the pod
_QUEUED_SHARE = 0.8  # of the steps: the queue never empties
_MIN_STEPS = 20


@dataclass(frozen=True, slots=True)
class Assessment:
    """One decision's view; believed only when it persists."""

    obstacle: Obstacle
    capacity_rps: float | None


def assess(
    sla: SLA,
    evidence: Evidence,
    room: CapacityModel,
    target: StepTarget,
    spell: BurnWindow,
    *,
    batch: int,
    budget: int,
    batch_bound: str,
    slowdown: float = 1.0,
    is_tuned: bool = True,
) -> Assessment:
    """Name what keeps the SLA from being met, or nothing.

    What requests missed counts, of the last minute and of the whole spell: a gap is the pace's
    matter, and a bad minute within a good spell is a burst. `is_tuned`: limits follow the model.
    """
    if not evidence.model.valid:
        return Assessment("", None)
    capacity = room.sustainable_rps(batch)
    obstacle = _floor(sla, room, target)
    objective, running = sla.objective, evidence.load.running
    is_missed = spell.is_burning(objective, evidence.now) and spell.is_spent(objective)
    if not obstacle and is_missed:
        by_memory = batch_bound == "KV" and running >= _FULL * batch
        obstacle = (
            _overload(evidence, room, capacity, slowdown, by_memory=by_memory)
            or _conflict(sla, room, rows=min(batch, max(1, running)), budget=budget)
            or _bursts(spell, objective, evidence.now, is_tuned=is_tuned)
        )
    return Assessment(obstacle, capacity)


def _floor(sla: SLA, room: CapacityModel, target: StepTarget) -> Obstacle:
    """One request alone misses its target."""
    if target.is_below_floor:
        return "TPOTFloor"
    if sla.ttft_p99_ms is not None and room.ttft_floor_ms() > sla.ttft_p99_ms:
        return "TTFTFloor"
    return ""


def _overload(
    evidence: Evidence, room: CapacityModel, capacity: float, slowdown: float, *, by_memory: bool
) -> Obstacle:
    """More arrives than the pod can serve."""
    arrivals = room.demand.arrival_rps
    if arrivals <= capacity and not _queue_never_empties(evidence):
        return ""
    if slowdown > _DEGRADED and arrivals <= capacity * slowdown:
        return "DegradedHardware"
    return "KVBound" if by_memory else "CapacityExceeded"


def _conflict(sla: SLA, room: CapacityModel, *, rows: int, budget: int) -> Obstacle:
    """Keeping the pace of what runs leaves too little for prompts."""
    if sla.ttft_p99_ms is None or room.prefill_ms(decode=rows, budget=budget) <= sla.ttft_p99_ms:
        return ""
    return "TTFTvsTPOTConflict"


def _bursts(spell: BurnWindow, objective: float, now: float, *, is_tuned: bool) -> Obstacle:
    """What arrives fits on average, and five minutes of the best limits have not kept the SLA."""
    return "CapacityExceeded" if is_tuned and spell.is_lost(objective, now) else ""


def _queue_never_empties(evidence: Evidence) -> bool:
    steps = evidence.steps
    if len(steps) < _MIN_STEPS or evidence.load.waiting == 0:
        return False
    if steps[0].at > evidence.now - 0.5 * evidence.window_s:
        return False  # a burst is not a load
    return sum(step.waiting > 0 for step in steps) > _QUEUED_SHARE * len(steps)
