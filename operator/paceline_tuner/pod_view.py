"""PodView: all that one decision looks at, gathered once."""

from dataclasses import dataclass, replace

from msgspec import UNSET

from paceline_tuner.attainment import Counts, is_breach, observe, pace, quick_step_ms
from paceline_tuner.capacity import CapacityModel, EngineTraits, capacity_for, within
from paceline_tuner.lanes import judged
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.step_target import StepTarget
from paceline_tuner.telemetry import LimitsAnswer
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.window import REACT_S, Evidence

_MIN_PREFILL_CPU = 16  # as the engine's own pacer grants
_MIN_PREFILL_GPU = 64
_MIN_FIT_STEPS = 20


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod as it is now: what was measured, what it could do, and what is aimed at."""

    spec: TuningSpec
    evidence: Evidence
    state: PodState
    capacity_model: CapacityModel
    target: StepTarget
    current: TunedLimits
    observed: MeasuredLatency
    counts: Counts
    recent: Counts
    """Pace under the present limits, lately."""

    @property
    def is_missing_pace(self) -> bool:
        """Gaps or requests are slow too often for chance."""
        objective, recent = self.spec.sla.objective, self.recent
        steps, slow = int(recent.gaps / recent.rows), int(recent.missed_gaps / recent.rows)
        return is_breach(recent.requests, recent.missed_requests, objective) or is_breach(
            steps, slow, objective
        )

    @property
    def is_trusted(self) -> bool:
        """The step model may decide."""
        return self.evidence.model.valid

    @property
    def is_learning(self) -> bool:
        """Too few steps to decide from in any way."""
        return not self.is_trusted and self.evidence.model.samples < _MIN_FIT_STEPS

    @property
    def is_draining(self) -> bool:
        """More runs than the limit admits: the present pace is not that of the limits."""
        return self.evidence.load.running > self.current.batch_size

    def within(self, limits: TunedLimits) -> TunedLimits:
        """Bring limits within what the pod and the user allow; a pod may hold others."""
        capacity, spec = self.evidence.limits.capacity, self.spec
        return replace(
            limits,
            batch_size=within(limits.batch_size, spec.batch_size, capacity.max_batch_size),
            token_budget=within(limits.token_budget, spec.token_budget, capacity.max_token_budget),
        )

    def retargeted(self, state: PodState) -> "PodView":
        """The same measurements under another state, aimed by its trim."""
        if state is self.state:
            return self
        if state.trim == self.state.trim:
            return replace(self, state=state)
        target, capacity_model = _aim(self.spec, self.evidence, state)
        return replace(self, state=state, target=target, capacity_model=capacity_model)


def view_pod(spec: TuningSpec, evidence: Evidence, state: PodState) -> PodView:
    """Gather what one decision looks at."""
    target, capacity_model = _aim(spec, evidence, state)
    judged_evidence = judged(spec, evidence)
    observed, counts = observe(spec.sla, judged_evidence)
    return PodView(
        spec=spec,
        evidence=evidence,
        state=state,
        capacity_model=capacity_model,
        target=target,
        current=current_limits(evidence.limits),
        observed=observed,
        counts=counts,
        # Slices begun after the change: earlier ones still hold gaps of the old limits.
        recent=pace(spec.sla, judged_evidence, max(evidence.now - 2 * REACT_S, state.changed_at)),
    )


def _aim(spec: TuningSpec, evidence: Evidence, state: PodState) -> tuple[StepTarget, CapacityModel]:
    """Derive what steps may take, and what the pod could do at best under that."""
    is_cpu = evidence.info.device.startswith("cpu")
    engine = EngineTraits(
        evidence.limits.capacity,
        min_prefill=_MIN_PREFILL_CPU if is_cpu else _MIN_PREFILL_GPU,
        # On a GPU the long steps of a pace let more sequences run at once, whose contexts every
        # step reads: it serves up to a hundredth less, and first tokens come no sooner.
        has_slack=is_cpu and evidence.limits.requested.pace_tpot_ms is not UNSET,
    )
    return capacity_for(
        spec, state, evidence.model, engine, quickest_ms=quick_step_ms(evidence.steps)
    )


def current_limits(limits: LimitsAnswer) -> TunedLimits:
    """Read the limits that hold: after a lost lease the certified ones, else the requested ones.

    While a larger batch drains, the requested ones are what it will reach.
    """
    return TunedLimits.of(limits.effective if limits.lease_lost else limits.requested)
