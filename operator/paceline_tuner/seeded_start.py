"""SeededStart: how an engine without a step model of its own begins with a warm start."""

import math
from dataclasses import dataclass

from paceline_tuner.capacity import within_bounds
from paceline_tuner.pod_view import PodView
from paceline_tuner.propose import LimitsProposal
from paceline_tuner.service_report import LimitsChange
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start import StartingPoint
from paceline_tuner.warm_start_entry import WarmStartEntry

_SHARE = 0.9  # of limits that were found elsewhere, until this pod's own model speaks
_UNFITTED = frozenset({"prior", "profile", "seed"})
_CUT = 0.75  # of remembered limits: the engine's own first fit says that they are wrong
_SLOW = 1.2  # of `fast` or the slowdown: the limits are not to blame
BINDING = "Remembered"


@dataclass(frozen=True, slots=True)
class SeededStart:
    """What a new engine is sent: a step model of its kind, and limits that served there."""

    coefficients: WarmStartEntry
    limits: WarmStartEntry | None
    proposal: LimitsProposal | None
    """What follows from `limits` for this pod; None where no limits are known."""

    @property
    def reason(self) -> str:
        """The start in words, for people."""
        model = "the step model of an engine of the same kind"
        if self.limits is None:
            return f"remembered: starts from {model}; no limits are known to keep this SLA"
        batch, budget = self.limits.batch_size, self.limits.token_budget
        return (
            f"remembered: starts from {model} and {_SHARE:.0%} of the limits that kept this SLA "
            f"there, {batch} sequences and {budget} tokens"
        )


def seeded_start(view: PodView, starting_point: StartingPoint | None) -> SeededStart | None:
    """Begin from `starting_point`, once for each engine; None where there is nothing to do."""
    spec, evidence = view.spec, view.evidence
    is_ours = spec.mode == "Auto" and not spec.paused and not evidence.limits.lease_lost
    if (
        starting_point is None
        or view.state.has_started
        or not is_ours
        or evidence.model.origin not in _UNFITTED
    ):
        return None
    remembered = starting_point.limits
    proposal = None if remembered is None else _proposal(view, remembered)
    return SeededStart(starting_point.coefficients, remembered, proposal)


def failed_start(view: PodView, change: LimitsChange | None) -> WarmStartEntry | None:
    """Give the remembered limits that still hold, if they miss their pace or are cut at once."""
    is_missed = view.is_missing_pace and not view.is_draining
    is_cut = change is not None and (
        change.to_batch_size < change.from_batch_size * _CUT
        or change.to_token_budget < change.from_token_budget * _CUT
    )
    is_slow_hardware = max(view.evidence.model.fast, view.state.slowdown.ratio) > _SLOW
    return view.state.started if (is_missed or is_cut) and not is_slow_hardware else None


def _proposal(view: PodView, remembered: WarmStartEntry) -> LimitsProposal:
    batch, budget = within_bounds(
        view.spec,
        view.capacity_model,
        math.ceil(remembered.batch_size * _SHARE),
        math.ceil(remembered.token_budget * _SHARE),
    )
    # What was learned there of this pace's tail counts here; a target of none stays none.
    targets = [ms for ms in (view.target.ms, remembered.step_target_ms) if ms is not None]
    target_ms = min(targets) if view.target.ms is not None else None
    limits = TunedLimits(batch, budget, target_ms, view.target.pace_tpot_ms)
    return LimitsProposal(limits, BINDING, "Capacity")
