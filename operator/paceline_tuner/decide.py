"""From one pod's evidence to its limits (loop L2). Pure: no clock, no network, no randomness."""

from dataclasses import replace

from paceline_tuner.assess import Assessment, assess
from paceline_tuner.belief import believe
from paceline_tuner.change_detection import TRANSITION_S, detect_changes
from paceline_tuner.conclude import DecisionParts, conclude
from paceline_tuner.decision import Decision
from paceline_tuner.guard import PROPOSALS, guarded
from paceline_tuner.outcome import settle
from paceline_tuner.pod_state import PodState
from paceline_tuner.pod_view import PodView, current_limits, view_pod
from paceline_tuner.propose import LimitsProposal, propose
from paceline_tuner.seeded_start import seeded_start
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.trim import trim
from paceline_tuner.warm_start import StartingPoint
from paceline_tuner.window import Evidence


def decide(
    spec: TuningSpec,
    pod: str,
    evidence: Evidence,
    state: PodState,
    now: float,
    *,
    starting_point: StartingPoint | None = None,
) -> Decision:
    """View the pod, propose limits, assess them, guard them, and conclude.

    A new engine begins from `starting_point`. `now` is Unix seconds.
    """
    state = detect_changes(spec, evidence, state, starting_point)
    held = current_limits(evidence.limits)
    outcome, pending = settle(state.pending, evidence, held, spec.interval_s)
    if pending is not state.pending:
        state = replace(state, pending=pending)
    view = view_pod(spec, evidence, state)
    view = view.retargeted(trim(view))
    start = seeded_start(view, starting_point)
    remembered = start.proposal if start is not None else None
    proposal = remembered or propose(view)
    assessment = assess(view, proposal)
    view = replace(view, state=_learned(view, proposal, assessment))
    limits = view.within(guarded(view, may_jump=remembered is not None))
    parts = DecisionParts(proposal, assessment, limits, start, outcome)
    return conclude(view, parts, pod=pod, now=now)


def _learned(view: PodView, proposal: LimitsProposal, assessment: Assessment) -> PodState:
    """Take in what this decision saw and proposed."""
    state, now = view.state, view.evidence.now
    is_met = state.burn.is_met(view.spec.sla.objective, now) and not view.is_missing_pace
    state = believe(state, assessment.obstacle, now, is_met=is_met)
    gained_trust = view.is_trusted and not state.was_valid
    proposals = (*(() if gained_trust else state.proposals), proposal.limits)[-PROPOSALS:]
    turns = state.believes_floor != view.state.believes_floor
    return replace(
        state,
        was_valid=view.is_trusted,
        transition_until=now + TRANSITION_S if gained_trust or turns else state.transition_until,
        # Proposals made without trust, or for another kind of target, are of no use.
        proposals=() if turns else proposals,
        audit=state.audit.add(view.spec.sla, view.evidence),
    )
