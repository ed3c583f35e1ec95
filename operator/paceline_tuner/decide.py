"""L2: from one pod's evidence to its caps. Pure: no clock, no network, no randomness."""

from dataclasses import replace

from paceline_tuner.achievable import Assessment, assess
from paceline_tuner.attainment import large_step_tokens, verdict
from paceline_tuner.audit import Audit, is_proven
from paceline_tuner.belief import believe
from paceline_tuner.change_detection import TRANSITION_S, detect_changes
from paceline_tuner.decision import Decision
from paceline_tuner.guard import PROPOSALS, Guard
from paceline_tuner.outcome import settle
from paceline_tuner.pod_state import PodState
from paceline_tuner.pod_view import PodView, current_caps, look, look_again
from paceline_tuner.predict import expect, predict
from paceline_tuner.propose import Proposal, propose
from paceline_tuner.reasons import inputs_of, reason_of
from paceline_tuner.seeded_start import SeededStart, failed_start, seeded_start
from paceline_tuner.service_report import LimitsChange, Phase
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.trim import trim
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start import StartingPoint
from paceline_tuner.warm_start_entry import WarmStartEntry
from paceline_tuner.window import Evidence

_COOL_AFTER_DECREASE_S = 10.0
_COOL_AFTER_INCREASE_S = 30.0
_URGENT_SPACING_S = 4.0  # below one period: an urgent decrease may follow at the next tick
_LEARNING_STEPS = 200


def hold(pod: str, memory: PodState, now: float, reason: str, *, is_stale: bool) -> Decision:
    """Keep what the pod has: there is nothing to decide from."""
    phase: Phase = "Frozen" if is_stale else memory.phase
    return Decision(
        at=now,
        pod=pod,
        phase=phase,
        verdict="Unknown",
        binding="None",
        reason=reason,
        current=None,
        wanted=None,
        chosen=None,
        applied=False,
        memory=replace(memory, phase=phase),
        is_slow=memory.slowdown.is_slow,
    )


def decide(
    spec: TuningSpec,
    pod: str,
    evidence: Evidence,
    memory: PodState,
    now: float,
    *,
    recalled: StartingPoint | None = None,
) -> Decision:
    """Look, propose, assess, guard, explain. An engine that is new begins from `recalled`."""
    memory = detect_changes(spec, evidence, memory, recalled)
    outcome, pending = settle(
        memory.pending, evidence, current_caps(evidence.limits), spec.interval_s
    )
    memory = replace(memory, pending=pending)
    view = look(spec, evidence, memory)
    trimmed = trim(view)
    if trimmed.trim != memory.trim:
        view = look_again(view, trimmed)
    beginning = seeded_start(view, recalled)
    remembered = beginning.proposal if beginning is not None else None
    proposal = remembered or propose(view)
    assessment = _assess(view, proposal)
    memory = _learn(view, proposal, assessment)
    chosen = view.within(_guard(view, memory, may_jump=remembered is not None))
    decision = _conclude(
        view, memory, proposal, chosen, assessment, start=beginning, pod=pod, now=now
    )
    return replace(_begun(decision, failed_start(view, decision.change)), outcome=outcome)


def _assess(view: PodView, proposal: Proposal) -> Assessment:
    return assess(
        view.spec.sla,
        view.evidence,
        view.room,
        view.target,
        view.memory.spell,
        batch=proposal.caps.batch_size,
        budget=proposal.caps.token_budget,
        batch_bound=proposal.batch_bound,
        slowdown=view.memory.slowdown.ratio,
        is_tuned=view.spec.mode == "Auto" and not view.spec.paused and not view.is_missing_pace,
    )


def _learn(view: PodView, proposal: Proposal, assessment: Assessment) -> PodState:
    """Carry over what the next decision needs."""
    memory, now = view.memory, view.evidence.now
    is_met = memory.spell.is_met(view.spec.sla.objective, now) and not view.is_missing_pace
    memory = believe(memory, assessment.obstacle, now, is_met=is_met)
    gained_trust = view.is_trusted and not memory.was_valid
    proposals = (*(() if gained_trust else memory.proposals), proposal.caps)[-PROPOSALS:]
    turns = memory.believes_floor != view.memory.believes_floor
    return replace(
        memory,
        was_valid=view.is_trusted,
        transition_until=now + TRANSITION_S if gained_trust or turns else memory.transition_until,
        # Proposals made without trust, or for another kind of target, are of no use.
        proposals=() if turns else proposals,
        audit=memory.audit.add(view.spec.sla, view.evidence),
    )


def _guard(view: PodView, memory: PodState, *, may_jump: bool) -> TunedLimits:
    """Choose the caps that should hold now: the proposals, as far as the guards let them."""
    current, now = view.current, view.evidence.now
    widen = 2.0 if memory.is_swinging(now) else 1.0
    if not memory.proposals:
        return current
    is_new = now < memory.transition_until and len(memory.proposals) == 1
    may_jump = may_jump or is_new or view.spec.mode == "Fixed" or view.evidence.limits.lease_lost
    guard = Guard(
        may_jump=may_jump,
        is_urgent=view.is_missing_pace or current.step_target_ms is None,
        num_running=view.evidence.load.running,
        num_waiting=view.evidence.load.waiting,
        num_tokens=large_step_tokens(view.evidence.steps),
        widen=widen,
        by_drift=is_new and memory.is_drifted,
    )
    wanted = guard.apply(current, memory.proposals)
    if may_jump or wanted == current:
        return wanted
    since = now - memory.changed_at
    cool_s = _COOL_AFTER_INCREASE_S if memory.was_raised else _COOL_AFTER_DECREASE_S
    is_raise = _is_raise(current, wanted)
    if is_raise and (now < memory.backoff_until or since < _COOL_AFTER_INCREASE_S * widen):
        return current
    needed_s = _URGENT_SPACING_S if guard.is_urgent and not is_raise else cool_s * widen
    return wanted if since >= needed_s else current


def _is_raise(current: TunedLimits, wanted: TunedLimits) -> bool:
    """No cap goes down, so nothing gets safer."""
    held, target = current.step_target_ms, wanted.step_target_ms
    is_tighter = target is not None and (held is None or target < held)
    held, pace = current.pace_tpot_ms, wanted.pace_tpot_ms
    # No pace leaves the step target, which allows less.
    is_tighter |= held is not None and (pace is None or pace < held)
    return not (
        wanted.batch_size < current.batch_size
        or wanted.token_budget < current.token_budget
        or is_tighter
    )


def _phase(view: PodView, memory: PodState) -> Phase:
    now = view.evidence.now
    if memory.unattainable:
        return "Unattainable"
    if now < memory.backoff_until:
        return "Backoff"
    if not view.is_trusted:
        young = view.evidence.model.samples < _LEARNING_STEPS
        return "ColdStart" if young else "Learning"
    if now < memory.transition_until:
        return "Transition"
    return "Tracking" if memory.audit.is_certified(view.spec.sla.objective) else "Learning"


def _conclude(
    view: PodView,
    memory: PodState,
    proposal: Proposal,
    chosen: TunedLimits,
    assessment: Assessment,
    *,
    start: SeededStart | None,
    pod: str,
    now: float,
) -> Decision:
    current, spec = view.current, view.spec
    may_apply = spec.mode != "Observe" and not spec.paused
    phase = _phase(view, memory)
    reason = start.reason if start else reason_of(view, proposal, chosen, memory)
    prediction = predict(view, chosen, assessment.capacity_rps)
    change = None
    if may_apply and chosen != current:
        change = LimitsChange(
            at=now,
            pod=pod,
            from_batch_size=current.batch_size,
            from_token_budget=current.token_budget,
            to_batch_size=chosen.batch_size,
            to_token_budget=chosen.token_budget,
            reason=reason,
        )
        memory = expect(view, _changed(memory, view, chosen, change), change, chosen, prediction)
    held_s = view.evidence.now - memory.changed_at
    return Decision(
        at=now,
        pod=pod,
        phase=phase,
        verdict=verdict(view.counts, spec.sla.objective),
        binding=proposal.binding,
        reason=reason,
        current=current,
        wanted=proposal.caps,
        chosen=chosen,
        applied=may_apply,
        inputs=inputs_of(view),
        prediction=prediction,
        obstacle=memory.unattainable,
        observed=view.observed,
        counts=view.counts,
        change=change,
        memory=replace(memory, phase=phase),
        is_proven=chosen == current
        and is_proven(
            view.counts, spec.sla.objective, held_s=held_s, window_s=view.evidence.window_s
        ),
        is_trusted=view.is_trusted,
        is_slow=memory.slowdown.is_slow,
        start=start,
    )


def _begun(decision: Decision, missed: WarmStartEntry | None) -> Decision:
    """Follow the limits that an engine began with until it is known what they are worth."""
    memory, beginning = decision.memory, decision.start
    if beginning is not None:
        memory = replace(memory, has_started=True, started=beginning.limits)
        return replace(decision, memory=memory)
    is_over = missed is not None or decision.is_proven or decision.change is not None
    memory = replace(memory, started=None) if is_over else memory
    return replace(decision, memory=memory, failed_start=missed)


def _changed(
    memory: PodState, view: PodView, chosen: TunedLimits, change: LimitsChange
) -> PodState:
    now = view.evidence.now
    is_raise = _is_raise(view.current, chosen)
    turned = is_raise != memory.was_raised and memory.last_change is not None
    return replace(
        memory,
        changed_at=now,
        was_raised=is_raise,
        reversals=(*memory.reversals, now)[-20:] if turned else memory.reversals,
        # What was certified stays so under tighter limits.
        audit=Audit(since=now, last_seq=memory.audit.last_seq) if is_raise else memory.audit,
        last_change=change,
    )
