"""Change detection: what is new since the last decision, of engine, SLA, policy, load, device."""

from dataclasses import replace

from paceline_tuner.audit import Audit
from paceline_tuner.burn_window import BurnWindow
from paceline_tuner.demand import demand
from paceline_tuner.experiment.policy import policy_of
from paceline_tuner.lanes import judged
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.warm_start import StartingPoint
from paceline_tuner.window import REACT_S, Evidence

TRANSITION_S = 60.0
_COOLED_S = 30.0


def detect_changes(
    spec: TuningSpec,
    evidence: Evidence,
    state: PodState,
    starting_point: StartingPoint | None = None,
) -> PodState:
    """Begin a transition, in which limits may jump, where something is new; measure the demand.

    The model in `starting_point` tells whether a new engine is slower than its kind.
    """
    now, policy = evidence.now, policy_of(spec)
    # A clock that went back leaves times of the future in the state, which would never come.
    if state.instance != evidence.instance or now < state.at:
        state = _new_engine(spec, evidence, state)
    elif state.sla != spec.sla:
        state = _new_sla(spec, evidence, state)
    if state.policy not in {None, policy}:
        state = replace(
            state, proposals=(), transition_until=now + TRANSITION_S, audit=Audit(since=now)
        )
    drift = state.drift.observe(evidence, spec.interval_s)
    known = None if starting_point is None else starting_point.coefficients.as_fit()
    slowdown = state.slowdown.observe(evidence, known)
    if state.is_drifted or drift.tripped:
        state = _drifted(replace(state, at=now, drift=drift), evidence)
    return replace(
        state,
        at=now,
        policy=policy,
        drift=drift,
        slowdown=slowdown,
        burn=state.burn.add(spec.sla, judged(spec, evidence)),
        demand=demand(evidence, state.demand, drift, objective=spec.sla.objective),
    )


def _new_engine(spec: TuningSpec, evidence: Evidence, state: PodState) -> PodState:
    """Forget all but the demand: the engine has started anew, or its clock went back."""
    return PodState(
        instance=evidence.instance,
        sla=spec.sla,
        policy=policy_of(spec),
        demand=state.demand,
        last_change=state.last_change,
        transition_until=evidence.now + TRANSITION_S,
        changed_at=evidence.now - _COOLED_S,
        audit=Audit(since=evidence.now),
    )


def _new_sla(spec: TuningSpec, evidence: Evidence, state: PodState) -> PodState:
    """Forget what the former targets taught."""
    now = evidence.now
    return replace(
        state,
        sla=spec.sla,
        proposals=(),
        trim=1.0,
        transition_until=now + TRANSITION_S,
        backoff_until=0.0,
        obstacle_times=0,
        unattainable="",
        # The limits for this SLA are on their way: what ends soon ran under those before.
        burn=BurnWindow(since=now + REACT_S, seen_at=now),
        audit=Audit(since=now),
    )


def _drifted(state: PodState, evidence: Evidence) -> PodState:
    """Let the model's next proposal through at once where the load or the device has changed."""
    now, audit = evidence.now, state.audit
    if state.is_drifted:
        state = replace(state, is_drifted=False)
    if not state.drift.tripped:
        return state
    state = replace(state, burn=BurnWindow(since=_began(state), seen_at=now))
    if state.drift.has_new_load:
        # How misses bunched under the load of before says nothing of this one.
        audit = replace(audit, blocks=(), open_block=(0, 0))
    if not evidence.model.valid or now < max(state.transition_until, state.backoff_until):
        return replace(state, audit=audit)
    until = now + TRANSITION_S
    return replace(state, audit=audit, proposals=(), transition_until=until, is_drifted=True)


def _began(state: PodState) -> float:
    """Return when the change began: known for a load, now for a slow device."""
    return state.drift.fresh_since if state.drift.has_new_load else state.at
