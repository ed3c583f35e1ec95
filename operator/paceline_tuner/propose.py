"""What the limits should be, before the guards: by the model, or by trial where it is untrusted."""

from dataclasses import dataclass, replace

from paceline_tuner.capacity import CapacityModel, within_bounds
from paceline_tuner.pod_view import PodView
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.step_target import StepTarget
from paceline_tuner.tuned_limits import TunedLimits

_TILE = 16
_FENCE = 1.25  # of the step target: more than the pacer ever uses, less than a stall takes
_AIMD_BATCH = 0.8
_AIMD_BUDGET = 0.7
_MIN_BATCH = 4  # a pod that is slow with so few sequences is not slow because of its limits
_AIMD_GAIN = 1.1
_AIMD_CLEAN_S = 30.0
_AIMD_SETTLE_S = 10.0


@dataclass(frozen=True, slots=True)
class LimitsProposal:
    """Limits as they should be, and the constraint that decided them."""

    limits: TunedLimits
    binding: str
    batch_bound: str
    """What bounds the batch size alone: `SLA`, `SLA:e2e`, `KV`, `Capacity`."""


def propose(view: PodView) -> LimitsProposal:
    """Choose by mode and by what is known."""
    if view.spec.mode == "Fixed":
        return _fixed(view)
    is_new_floor = view.target.is_below_floor and not view.state.believes_floor
    if view.is_trusted and not is_new_floor:
        return choose_limits(view.spec, view.capacity_model, view.target)
    # A floor that a moment's noise made must not cut the batch to one.
    if view.is_learning or is_new_floor:
        limits = TunedLimits(
            view.current.batch_size,
            view.current.token_budget,
            view.target.ms,
            view.target.pace_tpot_ms,
        )
        return _bounded(view.spec, view.capacity_model, limits, view.target.binding, "Capacity")
    return _by_trial(view)


def choose_limits(
    spec: TuningSpec, capacity_model: CapacityModel, target: StepTarget
) -> LimitsProposal:
    """Choose the largest safe batch, and the most tokens that any paced step can use.

    `paceline plan` predicts what the tuner will choose by this function.
    """
    capacity = capacity_model.capacity
    top = min(spec.batch_size.max or capacity.max_batch_size, capacity.max_batch_size)
    batch, bound = capacity_model.largest_batch(top)
    if bound in {"SLA", "SLA:e2e"}:
        batch = max(batch, min(_MIN_BATCH, top))
    most = _fence(capacity_model).useful_budget(capacity.max_token_budget)
    budget = most if most < _TILE else most // _TILE * _TILE
    limits = TunedLimits(batch, budget, target.ms, target.pace_tpot_ms)
    return _bounded(
        spec, capacity_model, limits, target.binding if bound == "SLA" else bound, bound
    )


def _fence(capacity_model: CapacityModel) -> CapacityModel:
    """Allow a step that is a quarter too long: none that the pacer allows comes near it.

    A budget as tight as the pacer would follow every waver of q_r and of the level.
    """
    longest_ms = capacity_model.longest_ms or capacity_model.target_ms
    q_r = max(capacity_model.forecast.model.q_r, 1.0)
    return replace(
        capacity_model, longest_ms=None if longest_ms is None else _FENCE * longest_ms * q_r
    )


def _by_trial(view: PodView) -> LimitsProposal:
    """Lower the limits on a breach; raise them a little after a clean time with a queue."""
    current, evidence = view.current, view.evidence
    batch, budget = current.batch_size, current.token_budget
    held_s = evidence.now - view.state.changed_at
    if view.is_missing_pace and not view.is_draining and held_s >= _AIMD_SETTLE_S:
        batch = max(int(batch * _AIMD_BATCH), min(batch, _MIN_BATCH))
        budget = max(int(budget * _AIMD_BUDGET), batch + 2 * view.capacity_model.min_prefill)
    elif not view.is_missing_pace and held_s >= _AIMD_CLEAN_S and evidence.load.waiting > 0:
        batch, budget = int(batch * _AIMD_GAIN) + 1, int(budget * _AIMD_GAIN)
    limits = TunedLimits(batch, budget, view.target.ms, view.target.pace_tpot_ms)
    return _bounded(view.spec, view.capacity_model, limits, view.target.binding, "Capacity")


def _fixed(view: PodView) -> LimitsProposal:
    """Propose the declared initial values; where none is declared, the present ones."""
    spec, current = view.spec, view.current
    limits = TunedLimits(
        spec.batch_size.initial or current.batch_size,
        spec.token_budget.initial or current.token_budget,
        None,
    )
    return _bounded(view.spec, view.capacity_model, limits, "Bounds", "Capacity")


def _bounded(
    spec: TuningSpec,
    capacity_model: CapacityModel,
    limits: TunedLimits,
    binding: str,
    batch_bound: str,
) -> LimitsProposal:
    batch, budget = within_bounds(spec, capacity_model, limits.batch_size, limits.token_budget)
    if batch != limits.batch_size:
        binding = "Bounds"
    return LimitsProposal(
        replace(limits, batch_size=batch, token_budget=budget), binding, batch_bound
    )
