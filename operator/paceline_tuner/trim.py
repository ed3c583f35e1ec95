"""The trim: slow feedback that takes off the step target what the model does not foresee."""

from dataclasses import replace

from paceline_tuner.pod_state import PodState
from paceline_tuner.pod_view import PodView

_BACKOFF_S = 30.0
_TRIM_STEP = 0.06
_TRIM_GAIN = 0.02
_TRIM_MIN = 0.6
_TRIM_SPACING_S = 10.0
_TRIM_RECOVERY_S = 60.0


def trim(view: PodView) -> PodState:
    """Take a little off the step target on a breach that the model does not explain."""
    state, now = view.state, view.evidence.now
    since = now - max(state.trimmed_at, state.changed_at)
    if not view.is_trusted or view.target.is_below_floor:
        return state
    if view.is_missing_pace:
        # While a larger batch drains, or the target has not reached the pod, it is explained.
        is_explained = view.is_draining or not _is_in_force(view)
        if is_explained or since < _TRIM_SPACING_S or state.trim <= _TRIM_MIN:
            return state
        lowered = max(_TRIM_MIN, state.trim - _TRIM_STEP)
        return replace(state, trim=lowered, trimmed_at=now, backoff_until=now + _BACKOFF_S)
    if state.trim < 1.0 and now - state.trimmed_at >= _TRIM_RECOVERY_S:
        return replace(state, trim=min(1.0, state.trim + _TRIM_GAIN), trimmed_at=now)
    return state


def _is_in_force(view: PodView) -> bool:
    current, target = view.current, view.target
    pairs = (
        (current.step_target_ms, target.ms),
        (current.pace_tpot_ms, target.pace_tpot_ms),
    )
    return all(
        wanted is None or (held is not None and held <= wanted * 1.1) for held, wanted in pairs
    )
