"""Lesson: what a decision teaches for pods to come. Of most decisions, nothing."""

from paceline_tuner.decision import Decision
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry
from paceline_tuner.window import Evidence

_SETTLED = (0.85, 1.2)
"""Of `fast` and of the slowdown: outside, the level is a passing cause's, not the engine's."""


def to_remember(
    spec: TuningSpec, evidence: Evidence, decision: Decision, now: float
) -> WarmStartEntry | None:
    """Take what is worth remembering: limits of our own that hold the SLA, under a trusted model.

    `now` is Unix seconds.
    """
    key, limits, model = EngineKey.of(evidence.info), evidence.limits, evidence.model
    is_ours = spec.mode == "Auto" and not spec.paused and not limits.lease_lost
    is_certified = decision.memory.audit.is_certified(spec.sla.objective)
    if (
        key is None
        or not is_ours
        or not decision.is_trusted
        or decision.chosen != decision.current
        or decision.obstacle
        or not (is_certified or decision.is_proven)
        or not _SETTLED[0] <= model.fast <= _SETTLED[1]
        or decision.is_slow
        or not _SETTLED[0] <= decision.memory.slowdown.ratio <= _SETTLED[1]
    ):
        return None
    caps = TunedLimits.of(limits.requested)
    found = WarmStartEntry(
        key=key,
        sla=spec.sla,
        theta=model.theta,
        knee=model.knee,
        correction=model.correction,
        bin_tokens=model.bin_tokens,
        batch_size=caps.batch_size,
        token_budget=caps.token_budget,
        step_target_ms=caps.step_target_ms,
        at=now,
        is_certified=is_certified,
    )
    return found if found.is_sound else None
