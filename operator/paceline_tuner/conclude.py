"""The end of a decision: what was chosen, why, and the state that the next one begins from."""

from dataclasses import dataclass, replace

from paceline_tuner.assess import Assessment
from paceline_tuner.attainment import verdict
from paceline_tuner.audit import Audit, is_proven
from paceline_tuner.decision import Decision
from paceline_tuner.outcome import PendingOutcome, Prediction
from paceline_tuner.pod_state import PodState
from paceline_tuner.pod_view import PodView
from paceline_tuner.propose import LimitsProposal
from paceline_tuner.reasons import Reason, inputs_of, reason_of
from paceline_tuner.seeded_start import SeededStart, failed_start
from paceline_tuner.service_report import ChangeOutcome, LimitsChange, Phase
from paceline_tuner.tuned_limits import TunedLimits

_LEARNING_STEPS = 200
_MAX_REVERSALS_KEPT = 20


@dataclass(frozen=True, slots=True)
class DecisionParts:
    """What the steps of one decision found."""

    proposal: LimitsProposal
    assessment: Assessment
    limits: TunedLimits
    """The proposal, as far as the guards let it."""
    start: SeededStart | None
    """What a new engine begins with."""
    outcome: ChangeOutcome | None
    """What became of an earlier change, where that is known now."""


def conclude(view: PodView, parts: DecisionParts, *, pod: str, now: float) -> Decision:
    """Put the parts together into a decision. `view` holds the state with all that was learned."""
    spec, current, limits = view.spec, view.current, parts.limits
    may_apply = spec.mode != "Observe" and not spec.paused
    start = parts.start
    reason = Reason(start.reason) if start else reason_of(view, parts.proposal, limits)
    prediction = _predict(view, limits, parts.assessment.capacity_rps)
    change = None
    if may_apply and limits != current:
        change = LimitsChange(
            at=now,
            pod=pod,
            from_batch_size=current.batch_size,
            from_token_budget=current.token_budget,
            to_batch_size=limits.batch_size,
            to_token_budget=limits.token_budget,
            reason=reason.text,
            binding=parts.proposal.binding,
        )
    held_s, window_s = view.evidence.now - view.state.changed_at, view.evidence.window_s
    proven = limits == current and is_proven(
        view.counts, spec.sla.objective, held_s=held_s, window_s=window_s
    )
    failed = failed_start(view, change) if parts.start is None else None
    phase = _phase(view)
    state = view.state if phase == view.state.phase else replace(view.state, phase=phase)
    if failed is not None or proven:
        state = replace(state, started=None)
    return Decision(
        at=now,
        pod=pod,
        phase=state.phase,
        verdict=verdict(view.counts, spec.sla.objective, view.observed.by_prompt_tokens),
        binding=parts.proposal.binding,
        reason=reason.text,
        current=current,
        wanted=parts.proposal.limits,
        chosen=limits,
        applied=may_apply,
        inputs=inputs_of(view),
        prediction=prediction,
        outcome=parts.outcome,
        obstacle=state.unattainable,
        observed=view.observed,
        counts=view.counts,
        change=change,
        state=state,
        acknowledged_state=_acknowledged(view, parts, state, change, prediction),
        is_proven=proven,
        is_trusted=view.is_trusted,
        is_slow=state.slowdown.is_slow,
        start=parts.start,
        failed_start=failed,
        reason_subject=reason.subject,
    )


def hold(pod: str, state: PodState, now: float, reason: str, *, is_stale: bool) -> Decision:
    """Keep what the pod has: there is nothing to decide from."""
    state = replace(state, phase="Frozen" if is_stale else state.phase)
    return Decision(
        at=now,
        pod=pod,
        phase=state.phase,
        verdict="Unknown",
        binding="None",
        reason=reason,
        current=None,
        wanted=None,
        chosen=None,
        applied=False,
        state=state,
        acknowledged_state=state,
        is_slow=state.slowdown.is_slow,
    )


def _phase(view: PodView) -> Phase:
    state, now = view.state, view.evidence.now
    if state.unattainable:
        return "Unattainable"
    if now < state.backoff_until:
        return "Backoff"
    if not view.is_trusted:
        is_young = view.evidence.model.samples < _LEARNING_STEPS
        return "ColdStart" if is_young else "Learning"
    if now < state.transition_until:
        return "Transition"
    return "Tracking" if state.audit.is_certified(view.spec.sla.objective) else "Learning"


def _predict(view: PodView, chosen: TunedLimits, capacity_rps: float | None) -> Prediction:
    """Ask the step model what the limits lead to; one that is not trusted predicts nothing."""
    if not view.is_trusted:
        return Prediction(capacity_rps=capacity_rps)
    load = view.evidence.load
    return Prediction(
        step_ms=view.capacity_model.full_step_ms(chosen.batch_size),
        ttft_ms=view.capacity_model.ttft_ms(
            decode=min(chosen.batch_size, max(1, load.running)),
            budget=chosen.token_budget,
            queued_tokens=float(load.waiting_tokens),
        ),
        capacity_rps=capacity_rps,
    )


def _acknowledged(
    view: PodView,
    parts: DecisionParts,
    state: PodState,
    change: LimitsChange | None,
    prediction: Prediction,
) -> PodState:
    """Give the state that follows if the pod takes the change, and what it starts with."""
    if change is not None:
        state = _changed(view, parts.limits, state, change, prediction)
    if parts.start is not None:
        state = replace(state, has_started=True, started=parts.start.limits)
    return state


def _changed(
    view: PodView,
    limits: TunedLimits,
    state: PodState,
    change: LimitsChange,
    prediction: Prediction,
) -> PodState:
    evidence = view.evidence
    is_raise = limits.is_raise_from(view.current)
    has_turned = is_raise != state.was_raised and state.last_change is not None
    pending = PendingOutcome(
        at=change.at,
        since=evidence.now,
        epoch=evidence.limits.epoch,
        limits=limits,
        model=evidence.model,
        prediction=prediction,
    )
    return replace(
        state,
        changed_at=evidence.now,
        was_raised=is_raise,
        reversals=(*state.reversals, evidence.now)[-_MAX_REVERSALS_KEPT:]
        if has_turned
        else state.reversals,
        # What was certified stays so under tighter limits.
        audit=Audit(since=evidence.now, last_seq=state.audit.last_seq) if is_raise else state.audit,
        last_change=change,
        # A change by trial and error is not predicted, so it is not judged either.
        pending=pending if view.is_trusted else None,
        # The limits that the engine began with no longer hold.
        started=None,
    )
