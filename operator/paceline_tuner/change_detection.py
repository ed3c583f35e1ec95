"""What is new since the last decision: engine, SLA, policy, load or device."""

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
    spec: TuningSpec, evidence: Evidence, memory: PodState, recalled: StartingPoint | None = None
) -> PodState:
    """Start a transition, in which caps may jump, where something is new. Measure the demand."""
    now, policy = evidence.now, policy_of(spec)
    # A clock that went back leaves times of the future in memory, which would never come.
    if memory.instance != evidence.instance or now < memory.at:
        memory = PodState(
            instance=evidence.instance,
            sla=spec.sla,
            policy=policy,
            demand=memory.demand,
            last_change=memory.last_change,
            transition_until=now + TRANSITION_S,
            changed_at=now - _COOLED_S,
            audit=Audit(since=now),
        )
    elif memory.sla != spec.sla:
        memory = replace(
            memory,
            sla=spec.sla,
            proposals=(),
            trim=1.0,
            transition_until=now + TRANSITION_S,
            backoff_until=0.0,
            obstacle_times=0,
            unattainable="",
            # The limits for this SLA are on their way: what ends soon ran under those before.
            spell=BurnWindow(since=now + REACT_S, seen_at=now),
            audit=Audit(since=now),
        )
    if memory.policy not in {None, policy}:
        memory = replace(
            memory,
            proposals=(),
            transition_until=now + TRANSITION_S,
            audit=Audit(since=now),
        )
    drift = memory.drift.observe(evidence, spec.interval_s)
    known = None if recalled is None else recalled.coefficients.as_fit()
    slowdown = memory.slowdown.observe(evidence, known)
    memory = replace(memory, at=now, policy=policy, drift=drift, slowdown=slowdown)
    memory = _drifted(memory, evidence)
    memory = replace(memory, spell=memory.spell.add(spec.sla, judged(spec, evidence)))
    return replace(memory, demand=demand(evidence, memory.demand, drift))


def _drifted(memory: PodState, evidence: Evidence) -> PodState:
    """A change of load or device lets the model's next proposal through at once."""
    now, audit = evidence.now, memory.audit
    memory = replace(memory, is_drifted=False)
    if not memory.drift.tripped:
        return memory
    memory = replace(memory, spell=BurnWindow(since=_began(memory), seen_at=now))
    if memory.drift.has_new_load:
        # How misses bunched under the load of before says nothing of this one.
        audit = replace(audit, blocks=(), open_block=(0, 0))
    if not evidence.model.valid or now < max(memory.transition_until, memory.backoff_until):
        return replace(memory, audit=audit)
    until = now + TRANSITION_S
    return replace(memory, audit=audit, proposals=(), transition_until=until, is_drifted=True)


def _began(memory: PodState) -> float:
    """When what has changed began: of a load it is known, a device has just been seen."""
    return memory.drift.fresh_since if memory.drift.has_new_load else memory.at
