"""TuningLoop: one tick reads every pod of a service, decides, changes limits, and concludes."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paceline_tuner.annotations import Annotation, annotations
from paceline_tuner.attainment import NOTHING, Counts
from paceline_tuner.condition import Condition
from paceline_tuner.decide import decide, hold
from paceline_tuner.decision import Decision
from paceline_tuner.experiment.experiments import Experiments
from paceline_tuner.lanes import batch_report, with_batch_target
from paceline_tuner.patch import patch_body, renewal
from paceline_tuner.pod_state import PodState
from paceline_tuner.pods import PodClient, PodError
from paceline_tuner.service import combined, recommended_replicas
from paceline_tuner.service_report import LimitsChange, PodReport, ServiceReport
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.sla_conditions import (
    device_healthy,
    sla_achievable,
    sla_met,
    telemetry_available,
    tuning_active,
)
from paceline_tuner.telemetry import LimitsAnswer, PodAdapter
from paceline_tuner.warm_start_store import LiveWarmStart, WarmStartStore
from paceline_tuner.window import Evidence, Window

_HISTORY = 5
_DECISIONS = 200
_STALE_PERIODS = 3


@dataclass(slots=True)
class _Pod:
    """What the loop keeps of one pod between ticks."""

    window: Window = field(default_factory=Window)
    memory: PodState = field(default_factory=PodState)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=_DECISIONS))
    limits: LimitsAnswer | None = None
    seen_at: float = -math.inf
    change: LimitsChange | None = None
    """The last that reached the pod."""
    adapters: tuple[PodAdapter, ...] = ()


@dataclass(slots=True)
class _Service:
    pods: dict[str, _Pod] = field(default_factory=dict)
    met: Condition | None = None
    history: tuple[LimitsChange, ...] = ()


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One pod's part of a tick."""

    report: PodReport
    decision: Decision
    error: str
    change: LimitsChange | None
    evidence: Evidence | None


class TuningLoop:
    """Ticks services. Ticks of one service must not overlap; different services may."""

    def __init__(
        self, pods: PodClient, clock: Callable[[], float], store: WarmStartStore | None = None
    ) -> None:
        """Talk to pods through `pods`; `clock` gives Unix seconds; memory is kept in `store`."""
        self._pods = pods
        self._clock = clock
        self._services: dict[str, _Service] = {}
        self._experiments = Experiments()
        self._recollection = LiveWarmStart(store, clock)

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        """Read, decide, change, conclude. Never raises for what a pod does."""
        await self._recollection.open()
        service = self._services.setdefault(target.key, _Service())
        names = {pod.name for pod in target.pods}
        service.pods = {name: kept for name, kept in service.pods.items() if name in names}
        specs = self._experiments.specs(target, self._clock())
        states = [service.pods.setdefault(pod.name, _Pod()) for pod in target.pods]
        outcomes = await asyncio.gather(
            *(
                self._tick_pod(specs[pod.name], pod, state)
                for pod, state in zip(target.pods, states, strict=True)
            )
        )
        await self._recollection.save()
        seen = {o.report.name: o.evidence for o in outcomes if o.evidence is not None}
        experiment = self._experiments.observe(target, seen, self._clock())
        return replace(self._conclude(target, service, outcomes), experiment=experiment)

    def explain(self, key: str, pod: str) -> list[Decision]:
        """The last decisions on one pod, oldest first; empty for a pod that is not known."""
        service = self._services.get(key)
        state = service.pods.get(pod) if service is not None else None
        return list(state.decisions) if state is not None else []

    def annotations(self, since_ms: float) -> list[Annotation]:
        """All that the decision log tells of the time since, of all pods, oldest first."""
        marks = [
            mark
            for key, service in self._services.items()
            for pod in service.pods.values()
            for mark in annotations(key, pod.decisions, since_ms)
        ]
        return sorted(marks, key=lambda mark: mark.time)

    def forget(self, key: str) -> None:
        """Drop a service that was deleted."""
        self._services.pop(key, None)
        self._experiments.forget(key)

    async def _tick_pod(self, spec: TuningSpec, pod: PodTarget, state: _Pod) -> _Outcome:
        evidence, error = await self._read(spec, pod, state)
        now = self._clock()
        if evidence is None:
            is_stale = now - state.seen_at > _STALE_PERIODS * spec.interval_s
            decision = hold(pod.name, state.memory, now, error, is_stale=is_stale)
        else:
            state.seen_at = now
            recalled = self._recollection.recall(spec, evidence)
            decision = decide(spec, pod.name, evidence, state.memory, now, recalled=recalled)
            if not spec.is_candidate:
                self._recollection.learn(spec, evidence, decision)
        change, refusal = await self._send(spec, pod, state, evidence, decision)
        # A change that did not arrive is none: the next tick decides from what the pod says.
        if decision.change is not None and change is None:
            kept = replace(
                decision.memory,
                changed_at=state.memory.changed_at,
                last_change=state.memory.last_change,
                reversals=state.memory.reversals,
                was_raised=state.memory.was_raised,
                pending=state.memory.pending,
            )
            decision = replace(decision, memory=kept, change=None)
        if refusal and decision.start is not None:
            kept = replace(decision.memory, has_started=False, started=None)
            decision = replace(decision, memory=kept)
        state.memory = decision.memory
        state.change = change or state.change
        state.decisions.append(decision)
        return _Outcome(
            _report(pod, state, evidence, decision, error or refusal),
            decision,
            error,
            change,
            evidence,
        )

    async def _read(
        self, spec: TuningSpec, pod: PodTarget, state: _Pod
    ) -> tuple[Evidence | None, str]:
        try:
            telemetry = await self._pods.get_telemetry(pod, state.window.since)
        except PodError as error:
            return None, str(error)
        state.window.add(telemetry)
        state.limits = telemetry.limits or state.limits
        state.adapters = telemetry.adapters
        return state.window.evidence(spec.window_s), state.window.trouble

    async def _send(
        self,
        spec: TuningSpec,
        pod: PodTarget,
        state: _Pod,
        evidence: Evidence | None,
        decision: Decision,
    ) -> tuple[LimitsChange | None, str]:
        """Change limits, or renew their lease; the change that arrived, and what went wrong."""
        if evidence is not None:
            body = patch_body(spec, evidence.limits, decision)
            if decision.applied:
                trim = decision.memory.trim
                body = with_batch_target(body, spec, evidence, trim=trim)
        elif state.limits is not None and spec.on_telemetry_loss == "Hold":
            # Blind, but the pod may still hear: without a lease it would fall back.
            body = renewal(state.limits.epoch)
        else:
            return None, ""
        try:
            state.limits = await self._pods.patch_limits(pod, body)
        except PodError as error:
            return None, str(error)
        return decision.change, ""

    def _conclude(
        self, target: ServiceTarget, service: _Service, outcomes: Sequence[_Outcome]
    ) -> ServiceReport:
        decisions = [o.decision for o in outcomes if not o.error]
        is_seen = bool(decisions)
        counts = sum((d.counts for d in decisions), start=Counts(0, 0)) if is_seen else NOTHING
        service.met = sla_met(counts, target.spec, service.met, is_seen=is_seen)
        achievable = sla_achievable(decisions)
        changes = [o.change for o in outcomes if o.change is not None]
        service.history = (*reversed(changes), *service.history)[:_HISTORY]
        pods = tuple(o.report for o in outcomes)
        rates = [d.prediction.capacity_rps for d in decisions]
        known = [rate for rate in rates if rate is not None]
        capacity = sum(known) if known and len(known) == len(outcomes) else None
        arrivals = sum(report.arrival_rps for report in pods)
        return ServiceReport(
            key=target.key,
            at=self._clock(),
            observed=combined(decisions, counts),
            capacity_rps=capacity,
            utilization=arrivals / capacity if capacity else None,
            recommended_replicas=recommended_replicas(known, arrivals),
            conditions=(
                telemetry_available([o.error for o in outcomes], counts),
                service.met,
                achievable,
                device_healthy(decisions),
                tuning_active(target.spec, decisions, is_seen=is_seen),
            ),
            pods=pods,
            batch=batch_report(target.spec, [o.evidence for o in outcomes if o.evidence]),
            history=service.history,
            acknowledged=bool(pods)
            and all(pod.acknowledged_hash == target.spec.config_hash for pod in pods),
        )


def _report(
    pod: PodTarget, state: _Pod, evidence: Evidence | None, decision: Decision, error: str
) -> PodReport:
    limits = state.limits
    held = limits.requested if limits is not None else None
    demand = decision.memory.demand
    return PodReport(
        name=pod.name,
        node=pod.node,
        batch_size=held.max_batch_size if held is not None else None,
        token_budget=held.token_budget if held is not None else None,
        step_target_ms=held.step_target_ms if held is not None else None,
        running=evidence.load.running if evidence is not None else 0,
        waiting=evidence.load.waiting if evidence is not None else 0,
        observed=decision.observed,
        phase=decision.phase,
        binding=decision.binding,
        verdict=decision.verdict,
        reason=decision.reason,
        predicted_step_ms=decision.prediction.step_ms,
        model_mape=evidence.model.mape if evidence is not None else None,
        last_change=state.change,
        capacity_rps=decision.prediction.capacity_rps,
        arrival_rps=demand.arrival_rps if evidence is not None else 0.0,
        acknowledged_hash=(limits.config_hash or "") if limits is not None else "",
        error=error,
        outcome=decision.outcome,
        adapters=state.adapters,
    )
