"""A spec as the tuner takes it: units resolved, bounds filled in from the capacity."""

from paceline_api.hashes import config_hash
from paceline_api.inference_service import Spec
from paceline_api.policy_spec import BatchSizeRange, ExperimentSpec, TokenBudgetRange
from paceline_api.sla_spec import FirstTokenTarget, KeyLimitsSpec, SlaSpec
from paceline_api.units import milliseconds, seconds
from paceline_tuner.service_spec import (
    SLA,
    AdmissionLimits,
    ExperimentPlan,
    KeyLimits,
    Overrides,
    PromptClass,
    Range,
    TuningSpec,
    WantedAdapter,
)


def tuning_spec(spec: Spec) -> TuningSpec:
    """Read what the tuner needs to know: the hot fields, a pause and the price."""
    capacity = spec.engine.capacity
    return TuningSpec(
        sla=_sla(spec.sla),
        mode=spec.tuning.mode,
        batch_size=_range(spec.tuning.batch_size, capacity.max_batch_size),
        token_budget=_range(spec.tuning.token_budget, capacity.max_token_budget),
        admission=_admission(spec),
        interactive_share=float(spec.lanes.interactive.share),
        batch_share=float(spec.lanes.batch.share),
        batch_sla=None if spec.lanes.batch.sla is None else _sla(spec.lanes.batch.sla),
        interval_s=seconds(spec.tuning.interval),
        window_s=seconds(spec.tuning.window),
        on_telemetry_loss=spec.tuning.on_telemetry_loss,
        paused=spec.paused,
        step_margin=float(spec.tuning.step_margin),
        rollout=spec.tuning.rollout,
        experiment=_experiment(spec.tuning.experiment),
        config_hash=config_hash(spec),
        adapters=_adapters(spec),
        price_per_hour=_price(spec),
    )


def _price(spec: Spec) -> float | None:
    declared = spec.resources.price_per_hour
    return None if declared is None else float(declared)


def _sla(sla: SlaSpec | None) -> SLA:
    if sla is None:
        return SLA()
    return SLA(
        ttft_p99_ms=_loosest_ms(sla.ttft),
        tpot_p99_ms=milliseconds(sla.tpot.p99) if sla.tpot else None,
        itl_p99_ms=milliseconds(sla.itl.p99) if sla.itl else None,
        e2e_p99_ms=milliseconds(sla.e2e.p99) if sla.e2e else None,
        objective=float(sla.objective),
        ttft_by_prompt_tokens=_prompt_classes(sla.ttft),
    )


def _prompt_classes(ttft: FirstTokenTarget | None) -> tuple[PromptClass, ...]:
    declared = ttft.by_prompt_tokens if ttft is not None else None
    return tuple(PromptClass(each.up_to, milliseconds(each.p99)) for each in declared or ())


def _loosest_ms(ttft: FirstTokenTarget | None) -> float | None:
    """Return the loosest TTFT target: it refuses nobody who meets the target of its own class."""
    if ttft is None:
        return None
    if ttft.by_prompt_tokens:
        return milliseconds(ttft.by_prompt_tokens[-1].p99)
    return None if ttft.p99 is None else milliseconds(ttft.p99)


def _range(bounds: BatchSizeRange | TokenBudgetRange, capacity: int) -> Range:
    return Range(
        min=bounds.min,
        max=capacity if bounds.max is None else bounds.max,
        initial=bounds.initial,
    )


def _experiment(found: ExperimentSpec | None) -> ExperimentPlan | None:
    if found is None:
        return None
    policy, batch, budget = found.policy, found.policy.batch_size, found.policy.token_budget
    return ExperimentPlan(
        name=found.name,
        kind=found.kind,
        overrides=Overrides(
            mode=policy.mode,
            step_margin=float(policy.step_margin) if policy.step_margin else None,
            min_batch_size=batch.min if batch else None,
            max_batch_size=batch.max if batch else None,
            min_token_budget=budget.min if budget else None,
            max_token_budget=budget.max if budget else None,
        ),
        share=float(found.share),
        min_s=seconds(found.min_duration),
        max_s=seconds(found.max_duration),
    )


def _adapters(spec: Spec) -> tuple[WantedAdapter, ...] | None:
    """Give the whole list where the engine takes any: what is not in it is unloaded."""
    if not spec.engine.lora.max_adapters:
        return None
    return tuple(WantedAdapter(adapter.name, adapter.path) for adapter in spec.adapters or ())


def _admission(spec: Spec) -> AdmissionLimits:
    admission = spec.admission
    return AdmissionLimits(
        max_queued_requests=admission.max_queued_requests,
        max_queued_tokens=admission.max_queued_tokens,
        reject_at=float(admission.reject_at),
        request_timeout_s=seconds(admission.request_timeout),
        shed_hopeless=admission.shed_hopeless,
        order=admission.order,
        max_items_per_request=admission.max_items_per_request,
        max_prompt_tokens=admission.max_prompt_tokens,
        max_output_tokens=admission.max_output_tokens,
        per_key=_key_limits(admission.per_key),
        keys={key.name: _key_limits(key, key.weight or 1) for key in admission.keys or ()},
    )


def _key_limits(limits: KeyLimitsSpec, weight: int = 1) -> KeyLimits:
    return KeyLimits(
        weight=weight,
        max_concurrent_requests=limits.max_concurrent_requests,
        requests_per_minute=limits.requests_per_minute,
        tokens_per_minute=limits.tokens_per_minute,
    )
