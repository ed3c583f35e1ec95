"""TuningLoop: one tick reads every pod of a service, decides, changes limits, and concludes."""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from msgspec import UNSET

from paceline_tuner.annotations import Annotation, annotations
from paceline_tuner.arrival_trend import COUNTED_S, ServiceArrivals
from paceline_tuner.conclude import hold
from paceline_tuner.decide import decide
from paceline_tuner.decision import Decision
from paceline_tuner.decision_log import DecisionLog
from paceline_tuner.demand import counted_rps
from paceline_tuner.experiment.experiments import Experiments
from paceline_tuner.experiment.image_trials import ImageTrials
from paceline_tuner.lanes import by_class, with_batch_limits
from paceline_tuner.patch import is_renewal, lease_lasts, patch_body, renewal
from paceline_tuner.pod_state import PodState
from paceline_tuner.pods import PodClient, PodError, TokenRefusedError
from paceline_tuner.recommendation import Recommendation
from paceline_tuner.sample import SAMPLE
from paceline_tuner.service_report import PodReport, ServiceReport
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_summary import PodTick, known_capacities, summarize
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, PodAdapter, Telemetry
from paceline_tuner.throughput import throughput
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_store import LiveWarmStart, WarmStartStore
from paceline_tuner.window import Evidence, Window

_STALE_PERIODS = 3
_HEARD_S = 30.0
"""From a replica recommendation to the pod: a metrics scrape and the autoscaler period."""
_UNHELD_READS = 2
"""Reads in succession; one right after a change may still show the limits before it."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class _KnownPod:
    """What the loop keeps of one pod between ticks."""

    name: str
    window: Window = field(default_factory=lambda: Window(sample=SAMPLE))
    state: PodState = field(default_factory=PodState)
    log: DecisionLog = field(default_factory=DecisionLog)
    spec: TuningSpec | None = None
    """What the newest decision was made for."""
    limits: LimitsAnswer | None = None
    seen_at: float = -math.inf
    adapters: tuple[PodAdapter, ...] = ()
    refuses_token: bool = False
    """Whether its last answer was 401."""
    instance: str = ""
    acknowledged_epoch: int = 0
    knows_instances: bool = False
    """It refuses a change that is meant for another engine, where the change names one."""
    num_unheld: int = 0
    """Reads in succession that showed older limits than this instance acknowledged."""

    def acknowledge(self, limits: LimitsAnswer) -> None:
        """Note what the pod answered to a change."""
        self.limits = limits
        self.acknowledged_epoch = max(self.acknowledged_epoch, limits.epoch)

    def broken_word(self, telemetry: Telemetry) -> str:
        """Return an error if the pod does not hold the limits that it acknowledged, else empty."""
        if telemetry.instance != self.instance:
            self.instance, self.acknowledged_epoch = telemetry.instance, 0
        is_held = telemetry.limits is None or telemetry.limits.epoch >= self.acknowledged_epoch
        self.num_unheld = 0 if is_held else self.num_unheld + 1
        if self.num_unheld < _UNHELD_READS:
            return ""
        return "the pod does not hold the limits that it acknowledged"


@dataclass(slots=True)
class _KnownService:
    """What the loop keeps of one service between ticks."""

    pods: dict[str, _KnownPod] = field(default_factory=dict)
    report: ServiceReport | None = None
    arrivals: ServiceArrivals = field(default_factory=ServiceArrivals)
    recommendation: Recommendation = field(default_factory=Recommendation)


class TuningLoop:
    """Ticks services. Ticks of one service must not overlap; different services may."""

    def __init__(
        self, pods: PodClient, clock: Callable[[], float], store: WarmStartStore | None = None
    ) -> None:
        """Talk to pods through `pods`; `clock` gives Unix seconds; `store` keeps warm starts."""
        self._pods = pods
        self._clock = clock
        self._services: dict[str, _KnownService] = {}
        self._experiments = Experiments()
        self._image_trials = ImageTrials()
        self._warm_start = LiveWarmStart(store, clock)
        self._engines: WeakValueDictionary[str, _KnownPod] = WeakValueDictionary()
        """Who answered last as this instance."""

    async def tick(self, target: ServiceTarget) -> ServiceReport:
        """Read, decide, change, conclude. Never raises for what a pod does."""
        await self._warm_start.open()
        service = self._services.setdefault(target.key, _KnownService())
        service.pods = {
            pod.name: service.pods.get(pod.name) or _KnownPod(pod.name) for pod in target.pods
        }
        specs = self._experiments.specs(target, self._clock())
        ticks = await asyncio.gather(
            *(self._tick_pod(specs[pod.name], pod, service.pods) for pod in target.pods)
        )
        self._warm_start.save_soon()
        seen = {tick.report.name: tick.evidence for tick in ticks if tick.evidence is not None}
        experiment = self._experiments.observe(target, seen, self._clock())
        bases = [name for name, spec in specs.items() if not spec.is_candidate]
        images = self._image_trials.observe(target, bases, seen, self._clock())
        rates = {
            tick.report.name: None if tick.error else tick.report.counted_rps for tick in ticks
        }
        service.arrivals = service.arrivals.seen(rates, self._clock())
        ahead_rps = service.arrivals.trend.ahead_rps(_HEARD_S + target.start_s)
        service.recommendation = service.recommendation.updated(
            known_capacities(ticks), ahead_rps, self._clock()
        )
        summary = summarize(
            target,
            ticks,
            service.report,
            self._clock(),
            recommended=service.recommendation.replicas,
            quiet_s=service.arrivals.trend.quiet_s,
        )
        service.report = replace(summary, experiment=experiment, image_trial=images)
        return service.report

    def explain(self, key: str, pod: str) -> list[Decision]:
        """The last decisions on one pod, oldest first; empty for a pod that is not known."""
        service = self._services.get(key)
        known = service.pods.get(pod) if service is not None else None
        return known.log.decisions() if known is not None else []

    def annotations(self, since_ms: float) -> list[Annotation]:
        """Mark what the decision log tells of the time since, of all pods, oldest first."""
        marks = [
            mark
            for key, service in self._services.items()
            for known in service.pods.values()
            for mark in annotations(key, known.log.milestones(), since_ms)
        ]
        return sorted(marks, key=lambda mark: mark.time)

    def learn(self, warm_start: WarmStart) -> None:
        """Take in what the pods of other loops found out."""
        self._warm_start.hear(warm_start)

    def forget(self, key: str) -> None:
        """Drop a service that was deleted."""
        self._services.pop(key, None)
        self._experiments.forget(key)
        self._image_trials.forget(key)

    async def _tick_pod(
        self, spec: TuningSpec, pod: PodTarget, pods: Mapping[str, _KnownPod]
    ) -> PodTick:
        known = pods[pod.name]
        evidence, error = await self._read(spec, pod, pods)
        if (settled := _settled(spec, known, evidence)) is not None:
            decision = settled
            refusal = await self._send(spec, pod, known, evidence, decision)
        else:
            decision = self._decide(spec, pod, known, evidence, error)
            refusal = await self._send(spec, pod, known, evidence, decision)
            decision = decision.refused() if refusal else decision
            known.state, known.spec = decision.acknowledged_state, spec
            known.log.append(decision)
        report = _report(pod, known, evidence, decision, error or refusal)
        return PodTick(report, decision, error, evidence)

    async def _read(
        self, spec: TuningSpec, pod: PodTarget, pods: Mapping[str, _KnownPod]
    ) -> tuple[Evidence | None, str]:
        """Fetch telemetry; without evidence, the second value says why there is none."""
        known = pods[pod.name]
        try:
            telemetry = await self._pods.get_telemetry(pod, known.window.since)
        except PodError as error:
            known.refuses_token = isinstance(error, TokenRefusedError)
            return None, str(error)
        known.refuses_token = False
        if telemetry.pod != pod.name and telemetry.pod in pods:
            known.limits = None
            return None, f"the pod answers as {telemetry.pod}"
        if disguise := self._disguise(known, telemetry.instance):
            known.limits = None  # where its address leads now, none of its limits are to be sent
            return None, disguise
        known.window.add(telemetry, by_class(spec))
        known.limits = telemetry.limits or known.limits
        known.adapters = telemetry.adapters
        known.knows_instances = telemetry.step_rows is not UNSET
        broken_word = known.broken_word(telemetry)
        if trouble := known.window.trouble or broken_word:
            return None, trouble
        return known.window.evidence(spec.window_s), ""

    def _disguise(self, known: _KnownPod, instance: str) -> str:
        """Return an error if the engine is known as another pod's; empty if it is the pod's own."""
        owner = self._engines.get(instance)
        if owner is not None and owner is not known and owner.instance == instance:
            return f"the pod answers with the engine of {owner.name}"
        if self._engines.get(known.instance) is known:
            del self._engines[known.instance]
        self._engines[instance] = known
        return ""

    def _decide(
        self,
        spec: TuningSpec,
        pod: PodTarget,
        known: _KnownPod,
        evidence: Evidence | None,
        error: str,
    ) -> Decision:
        now = self._clock()
        if evidence is None:
            is_stale = now - known.seen_at > _STALE_PERIODS * spec.interval_s
            return hold(pod.name, known.state, now, error, is_stale=is_stale)
        known.seen_at = now
        starting_point = self._warm_start.starting_point(spec, evidence)
        decision = decide(spec, pod.name, evidence, known.state, now, starting_point=starting_point)
        if not spec.is_candidate:
            self._warm_start.learn(spec, evidence, decision)
        return decision

    async def _send(
        self,
        spec: TuningSpec,
        pod: PodTarget,
        known: _KnownPod,
        evidence: Evidence | None,
        decision: Decision,
    ) -> str:
        """Change limits, or renew their lease; gives what went wrong, empty when nothing did."""
        if evidence is not None:
            body = patch_body(spec, evidence.limits, decision)
            if decision.applied:
                body = with_batch_limits(body, spec, evidence, trim=decision.state.trim)
            if is_renewal(body, evidence.limits) and lease_lasts(evidence.limits, spec.interval_s):
                return ""
        elif known.limits is not None and spec.on_telemetry_loss == "Hold":
            # Blind, but the pod may still hear: without a lease it would fall back.
            body = renewal(known.limits, decision)
        else:
            return ""
        if known.knows_instances:
            body["instance"] = known.instance
        try:
            known.acknowledge(await self._pods.patch_limits(pod, body))
        except PodError as error:
            return str(error)
        return ""


def _settled(spec: TuningSpec, known: _KnownPod, evidence: Evidence | None) -> Decision | None:
    """Give the newest decision where nothing has happened that another could be made from."""
    newest = known.log.newest
    is_quiet = (
        newest is not None
        and evidence is not None
        and not (evidence.steps or evidence.requests or evidence.slices)
        and evidence.load.running == evidence.load.waiting == 0
        and newest.verdict == "Idle"
        and not newest.obstacle
        and newest.phase != "Transition"
        and newest.chosen == newest.current == TunedLimits.of(evidence.limits.requested)
        and known.spec == spec
        and known.state.instance == evidence.instance
        and evidence.limits.config_hash == spec.config_hash
    )
    return newest if is_quiet else None


def _report(
    pod: PodTarget, known: _KnownPod, evidence: Evidence | None, decision: Decision, error: str
) -> PodReport:
    limits = known.limits
    held = limits.requested if limits is not None else None
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
        last_change=known.state.last_change,
        capacity_rps=decision.prediction.capacity_rps,
        arrival_rps=known.state.demand.arrival_rps if evidence is not None else 0.0,
        acknowledged_hash=(limits.config_hash or "") if limits is not None else "",
        error=error,
        outcome=decision.outcome,
        adapters=known.adapters,
        refuses_token=known.refuses_token,
        counted_rps=counted_rps(evidence, COUNTED_S) if evidence is not None else 0.0,
        is_swinging=evidence is not None and known.state.is_swinging(evidence.now),
        throughput=throughput(evidence) if evidence is not None else None,
    )
