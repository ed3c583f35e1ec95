"""Compose the whole status of a service from what was observed and concluded."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from paceline_api.adapter_spec import AdapterSpec
from paceline_api.inference_service import InferenceService
from paceline_api.labels import selector
from paceline_api.status import (
    AdapterStatus,
    ChangeEntry,
    ConditionEntry,
    EngineStatus,
    LaneStatus,
    LoadingStatus,
    ObservedLatency,
    PodTuning,
    PromptClassStatus,
    QuantileLatency,
    ServiceCapacity,
    ServiceThroughput,
    SlaStatus,
    Status,
    TuningStatus,
    TuningSummary,
)
from paceline_api.units import as_latency, significant, timestamp
from paceline_operator.experiment_status import experiment_status
from paceline_operator.observe import Observation
from paceline_operator.render.children import url
from paceline_operator.service_conditions import count_replicas
from paceline_operator.write_plan import WritePlan
from paceline_tuner import service_report as tuner
from paceline_tuner.condition import Condition
from paceline_tuner.telemetry import PodAdapter

_MAX_STAGE: Final = 253
_MAX_PODS: Final = 100
_MAX_CHANGES: Final = 5
_MAX_REASON: Final = 1024


def service_status(
    observation: Observation, plan: WritePlan, concluded: Sequence[Condition]
) -> Status:
    """Compose the status; deterministic, so that an unchanged world gives an unchanged status."""
    service, report = observation.service, observation.report
    counts = count_replicas(observation)
    labels = selector(service.metadata.name)
    return Status(
        observed_generation=service.metadata.generation,
        observed_config_hash=_acknowledged(observation, plan),
        replicas=counts.present,
        ready_replicas=counts.ready,
        updated_replicas=counts.updated,
        selector=",".join(f"{key}={value}" for key, value in labels.items()),
        url=url(service),
        conditions=_conditions(service, concluded, observation.now),
        sla=sla_status(report) if report else service.status.sla,
        throughput=throughput_status(report) if report else service.status.throughput,
        tuning=tuning_status(report) if report else service.status.tuning,
        engine=_engine(observation),
        loading=_loading(observation),
        images=service.status.images,
        rollout=service.status.rollout,
        adapters=_adapters(observation),
    )


def _acknowledged(observation: Observation, plan: WritePlan) -> str | None:
    """Name the hot configuration that all pods last acknowledged."""
    report = observation.report
    is_acknowledged = (
        report is not None
        and report.acknowledged
        and bool(report.pods)
        and all(pod.acknowledged_hash == plan.config_hash for pod in report.pods)
    )
    before = observation.service.status.observed_config_hash
    return plan.config_hash if is_acknowledged else before


def _engine(observation: Observation) -> EngineStatus | None:
    images = {pod.engine.image_id for pod in observation.pods if pod.engine.image_id}
    if not images:
        return None
    return EngineStatus(
        image_digest=max(images), model_revision=observation.service.spec.model.revision
    )


def _loading(observation: Observation) -> LoadingStatus | None:
    loading = observation.loading
    if loading is None:
        return None
    return LoadingStatus(stage=loading.stage[:_MAX_STAGE], percent=int(100 * loading.fraction))


def _conditions(
    service: InferenceService, concluded: Sequence[Condition], now: datetime
) -> list[ConditionEntry]:
    """Give each condition its history: the time moves only when its status does."""
    before = {entry.type: entry for entry in service.status.conditions or ()}
    found = []
    for condition in concluded:
        old = before.get(condition.type)
        since = (
            old.last_transition_time if old and old.status == condition.status else timestamp(now)
        )
        found.append(
            ConditionEntry(
                type=condition.type,
                status=condition.status,
                observed_generation=service.metadata.generation,
                last_transition_time=since,
                reason=condition.reason,
                message=condition.message[:2048],
            )
        )
    return found


def sla_status(report: tuner.ServiceReport) -> SlaStatus:
    """Write what was measured over the window."""
    return SlaStatus(
        observed=_observed(report.observed, report.at),
        attainment=_share(report.observed.attainment),
        capacity=ServiceCapacity(
            requests_per_second=_rate(report.capacity_rps), utilization=_share(report.utilization)
        ),
        ttft_by_prompt_tokens=_prompt_classes(report.observed),
        batch=None if report.batch is None else _lane(report.batch),
    )


def throughput_status(report: tuner.ServiceReport) -> ServiceThroughput | None:
    """Write what the pods gave a second, and what their tokens cost."""
    given, cost = report.throughput, report.cost
    if given is None:
        return None
    return ServiceThroughput(
        output_tokens_per_second=significant(given.output_tps),
        prompt_tokens_per_second=significant(given.prompt_tps),
        requests_per_second=significant(given.finished_rps),
        cost_per_million_output_tokens=significant(cost.per_million_output) if cost else None,
        cost_per_million_tokens=significant(cost.per_million_total) if cost else None,
    )


def _prompt_classes(observed: tuner.MeasuredLatency) -> list[PromptClassStatus] | None:
    if not observed.by_prompt_tokens:
        return None
    return [
        PromptClassStatus(
            prompt_tokens=each.name,
            target=as_latency(each.target_ms) or "",
            ttft=as_latency(each.ttft_ms),
            requests=each.requests,
            attainment=_share(each.attainment),
            verdict=each.verdict,
        )
        for each in observed.by_prompt_tokens
    ]


def _lane(lane: tuner.LaneReport) -> LaneStatus:
    return LaneStatus(
        observed=_observed(lane.observed, None),
        attainment=_share(lane.observed.attainment),
        verdict=lane.verdict,
        ttft_by_prompt_tokens=_prompt_classes(lane.observed),
    )


def _observed(observed: tuner.MeasuredLatency, at: float | None) -> ObservedLatency:
    return ObservedLatency(
        ttft_p99=as_latency(observed.ttft_p99_ms),
        tpot_p99=as_latency(observed.tpot_p99_ms),
        itl_p99=as_latency(observed.itl_p99_ms),
        e2e_p99=as_latency(observed.e2e_p99_ms),
        at_objective=_at_objective(observed),
        samples=observed.samples,
        window_end=None if at is None else _time(at),
    )


def _at_objective(observed: tuner.MeasuredLatency) -> QuantileLatency | None:
    own = observed.at_objective
    if own is None:
        return None
    return QuantileLatency(
        quantile=f"{own.share:g}",
        ttft=as_latency(own.ttft_ms),
        tpot=as_latency(own.tpot_ms),
        itl=as_latency(own.itl_ms),
        e2e=as_latency(own.e2e_ms),
    )


def tuning_status(report: tuner.ServiceReport) -> TuningStatus:
    """Write each pod's limits and the last changes."""
    newest = max((change.at for change in report.history), default=None)
    return TuningStatus(
        summary=TuningSummary(
            batch_size=_span([pod.batch_size for pod in report.pods]),
            token_budget=_span([pod.token_budget for pod in report.pods]),
        ),
        recommended_replicas=report.recommended_replicas,
        last_change_time=None if newest is None else _time(newest),
        pods_omitted=max(0, len(report.pods) - _MAX_PODS),
        pods=[_pod(pod) for pod in sorted(report.pods, key=lambda pod: pod.name)[:_MAX_PODS]],
        history=[_change(change) for change in report.history[:_MAX_CHANGES]],
        experiment=experiment_status(report.experiment) if report.experiment else None,
    )


def _pod(pod: tuner.PodReport) -> PodTuning:
    return PodTuning(
        name=pod.name,
        node=pod.node or None,
        batch_size=pod.batch_size,
        token_budget=pod.token_budget,
        running=pod.running,
        waiting=pod.waiting,
        ttft_p99=as_latency(pod.observed.ttft_p99_ms),
        tpot_p99=as_latency(pod.observed.tpot_p99_ms),
        e2e_p99=as_latency(pod.observed.e2e_p99_ms),
        at_objective=_at_objective(pod.observed),
        phase=pod.phase,
        binding=pod.binding,
        verdict=pod.verdict,
        reason=(pod.error or pod.reason)[:_MAX_REASON] or None,
        last_change=_time(pod.last_change.at) if pod.last_change else None,
    )


def _change(change: tuner.LimitsChange) -> ChangeEntry:
    return ChangeEntry(
        time=_time(change.at),
        pod=change.pod,
        from_=f"{change.from_batch_size}/{change.from_token_budget}",
        to=f"{change.to_batch_size}/{change.to_token_budget}",
        reason=change.reason[:_MAX_REASON],
    )


def _span(values: Sequence[int | None]) -> str | None:
    """Write one number, or the lowest and the highest: `16-48`."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    return str(low) if low == high else f"{low}-{high}"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"


def _time(unix_s: float) -> str:
    return timestamp(datetime.fromtimestamp(unix_s, UTC))


def _adapters(observation: Observation) -> list[AdapterStatus] | None:
    """Count the pods that serve each adapter; until they were asked, repeat what status says."""
    declared, report = observation.service.spec.adapters, observation.report
    if not declared:
        return None
    if report is None:
        names = {adapter.name for adapter in declared}
        return [kept for kept in observation.service.status.adapters or () if kept.name in names]
    return [_adapter(adapter, report.pods) for adapter in declared]


def _adapter(adapter: AdapterSpec, pods: Iterable[tuner.PodReport]) -> AdapterStatus:
    asked = [pod for pod in pods if not pod.error]
    found = [one for pod in asked for one in pod.adapters if _is_of(one, adapter)]
    # Without the pod's name: the same refusal of every new pod is no news.
    refusals = sorted(one.message for one in found if one.state == "refused")
    return AdapterStatus(
        name=adapter.name,
        loaded_pods=sum(one.state == "loaded" for one in found),
        pods=len(asked),
        message=refusals[0][:_MAX_REASON] if refusals else None,
    )


def _is_of(one: PodAdapter, adapter: AdapterSpec) -> bool:
    """A pod that still has the adapter of an earlier URI does not have this one."""
    return (one.name, one.path) == (adapter.name, adapter.path)
