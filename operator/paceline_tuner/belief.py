"""When an obstacle that decisions see is believed and reported, and for how long."""

from dataclasses import replace

from paceline_tuner.condition import Obstacle
from paceline_tuner.pod_state import PodState

_PERSISTENT = 3  # decisions in a row that see an obstacle
_FEASIBLE_S = 300.0
"""How long without an obstacle until the SLA is called attainable again in any case."""
_FEASIBLE_AND_MET_S = 60.0
_CHANGED_AND_MET_S = 30.0
"""The same after the load, the device or the SLA has changed, while the SLA is met."""


def believe(state: PodState, obstacle: Obstacle, now: float, *, is_met: bool) -> PodState:
    """Take in what one decision saw, and whether the SLA is met. `now` is the pod's clock."""
    if obstacle:
        return _seen(state, obstacle, now)
    feasible_since = state.feasible_since if state.feasible_since is not None else now
    has_changed = state.burn.seen_at >= state.obstacle_at
    met_s = _CHANGED_AND_MET_S if has_changed else _FEASIBLE_AND_MET_S
    enough_s = met_s if is_met else _FEASIBLE_S
    unattainable = "" if now - feasible_since >= enough_s else state.unattainable
    if not (state.obstacle or state.obstacle_times) and (feasible_since, unattainable) == (
        state.feasible_since,
        state.unattainable,
    ):
        return state
    return replace(
        state,
        obstacle="",
        obstacle_times=0,
        feasible_since=feasible_since,
        unattainable=unattainable,
    )


def _seen(state: PodState, obstacle: Obstacle, now: float) -> PodState:
    """Count any obstacle: one whose name changes from time to time is still in the way.

    The reported name changes only when the new one is seen twice.
    """
    times = state.obstacle_times + 1
    is_steady = obstacle == state.obstacle
    named = obstacle if is_steady or not state.unattainable else state.unattainable
    return replace(
        state,
        obstacle=obstacle,
        obstacle_times=times,
        obstacle_at=now,
        feasible_since=None,
        unattainable=named if times >= _PERSISTENT else state.unattainable,
    )
