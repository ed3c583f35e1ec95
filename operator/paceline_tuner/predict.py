"""What the step model says of the limits that were chosen, kept until it can be judged."""

from dataclasses import replace

from paceline_tuner.outcome import PendingOutcome, Prediction
from paceline_tuner.pod_state import PodState
from paceline_tuner.pod_view import PodView
from paceline_tuner.service_report import LimitsChange
from paceline_tuner.tuned_limits import TunedLimits


def predict(view: PodView, chosen: TunedLimits, capacity_rps: float | None) -> Prediction:
    """Ask the model; without one that is trusted nothing is predicted."""
    if not view.is_trusted:
        return Prediction(capacity_rps=capacity_rps)
    load = view.evidence.load
    return Prediction(
        step_ms=view.room.full_step_ms(chosen.batch_size),
        ttft_ms=view.room.ttft_ms(
            decode=min(chosen.batch_size, max(1, load.running)),
            budget=chosen.token_budget,
            queued_tokens=float(load.waiting_tokens),
        ),
        capacity_rps=capacity_rps,
    )


def expect(
    view: PodView, memory: PodState, change: LimitsChange, chosen: TunedLimits, said: Prediction
) -> PodState:
    """Remember what was predicted of a change; what trial and error changes is not predicted."""
    evidence = view.evidence
    pending = PendingOutcome(
        at=change.at,
        since=evidence.now,
        epoch=evidence.limits.epoch,
        caps=chosen,
        model=evidence.model,
        prediction=said,
    )
    return replace(memory, pending=pending if view.is_trusted else None)
