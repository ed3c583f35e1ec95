"""The batch lane's own SLA: what it wants of steps, and whether it holds. Pure.

Where `lanes.batch.sla` is declared, the declared `sla` is the interactive lane's alone: each lane
is judged by its own requests and gaps. The engine keeps the least of what the lanes that decode in
a step want, so the batch lane's target counts for steps of its own, or where it is the stricter.
Its decodes may pause for people's prompts where it promises first tokens alone.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType

from paceline_tuner.attainment import NOTHING, combined, observe, verdict
from paceline_tuner.sample import all_alike
from paceline_tuner.service_report import LaneReport
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.step_target import starting_target_ms, step_target
from paceline_tuner.telemetry import RequestRecord
from paceline_tuner.window import Evidence

_OF_TTFT = 0.25  # of the interactive lane's target: who arrives during a step waits until it ends
_DEAD_BAND = 0.05


def judged(spec: TuningSpec, evidence: Evidence) -> Evidence:
    """Select the evidence that the declared `sla` is held against."""
    return evidence if spec.batch_sla is None else _of_lane(evidence, "interactive")


def by_class(spec: TuningSpec) -> Callable[[RequestRecord], Hashable]:
    """Tell requests apart by class of prompt, and by whether they missed its target.

    So a sample counts each class and its misses exactly.
    """
    slas = (spec.sla, spec.batch_sla or spec.sla)
    if not any(sla.ttft_by_prompt_tokens for sla in slas):
        return all_alike

    def kind_of(record: RequestRecord) -> Hashable:
        sla = spec.sla_of(record.lane)
        if not sla.ttft_by_prompt_tokens:
            return None
        place = sla.class_of(record.prompt_tokens)
        target_ms = sla.ttft_by_prompt_tokens[place].ttft_p99_ms
        return place, record.ttft_ms is not None and record.ttft_ms > target_ms

    return kind_of


def starting_batch_target_ms(spec: TuningSpec) -> float | None:
    """Derive the batch lane's step target for an engine that has run no step."""
    if spec.batch_sla is None:
        return None
    return _bounded(spec.batch_sla, spec.sla, starting_target_ms(spec.batch_sla))


def with_batch_limits(
    body: dict[str, object], spec: TuningSpec, evidence: Evidence, *, trim: float
) -> dict[str, object]:
    """Add the batch lane's limits to a change, each where it has moved and the engine knows it."""
    held = evidence.limits.requested
    step_ms = _batch_target_ms(spec, evidence, trim=trim)
    may_pause = _may_pause(spec.batch_sla)
    moved: dict[str, object] = {}
    if _has_moved(held.batch_step_target_ms, step_ms):
        moved["batch_step_target_ms"] = step_ms
    if isinstance(held.may_pause_batch, bool) and held.may_pause_batch != may_pause:
        moved["may_pause_batch"] = may_pause
    return {**body, **moved, "epoch": evidence.limits.epoch + 1} if moved else body


def batch_report(spec: TuningSpec, pods: Sequence[Evidence]) -> LaneReport | None:
    """Measure the batch lane over all pods; None where it has no SLA of its own."""
    if spec.batch_sla is None:
        return None
    seen = [observe(spec.batch_sla, _of_lane(pod, "batch")) for pod in pods]
    counts = sum((pod_counts for _, pod_counts in seen), start=NOTHING)
    objective = spec.batch_sla.objective
    observed = combined([latency for latency, _ in seen], counts, objective)
    return LaneReport(observed, verdict(counts, objective, observed.by_prompt_tokens))


def _has_moved(held: float | UnsetType | None, wanted: float | None) -> bool:
    """Tell whether a limit is to be sent; never where the engine does not know it."""
    if held is UNSET or held == wanted:
        return False
    return not held or not wanted or abs(wanted / held - 1) > _DEAD_BAND


def _may_pause(sla: SLA | None) -> bool:
    """Tell whether the batch lane promises nothing that a pause of its decodes takes from."""
    return sla is not None and (sla.tpot_p99_ms, sla.itl_p99_ms, sla.e2e_p99_ms) == (None,) * 3


def _batch_target_ms(spec: TuningSpec, evidence: Evidence, *, trim: float) -> float | None:
    if spec.batch_sla is None:
        return None
    target = step_target(
        spec.batch_sla,
        evidence.model,
        trim=trim * spec.step_margin,
        floor_ms=0.0,
        gives_up=False,
    )
    return _bounded(spec.batch_sla, spec.sla, target.ms)


def _bounded(batch: SLA, interactive: SLA, target_ms: float | None) -> float | None:
    """Keep steps below the first-token targets of both lanes: who arrives waits for a step."""
    bounds = [target_ms, batch.tightest_ttft_ms]
    if interactive.tightest_ttft_ms is not None:
        bounds.append(interactive.tightest_ttft_ms * _OF_TTFT)
    return min((bound for bound in bounds if bound is not None), default=None)


def _of_lane(evidence: Evidence, lane: str) -> Evidence:
    return replace(
        evidence,
        requests=tuple(r for r in evidence.requests if r.lane == lane),
        slices=tuple(s for s in evidence.slices if s.lane == lane),
    )
