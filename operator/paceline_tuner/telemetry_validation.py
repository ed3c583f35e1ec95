"""Telemetry validation: what a pod's telemetry can hold, and what it cannot. Pure.

A pod may be broken in any way. No decision is made from an answer that cannot be true; a single
impossible record is left out.
"""

import math
from collections.abc import Iterable

from msgspec import UNSET

from paceline_tuner.telemetry import (
    LimitsAnswer,
    Load,
    ModelFit,
    RequestRecord,
    SketchSlice,
    Step,
    Telemetry,
)

_LARGEST = 1e9  # of any coefficient, count of tokens or time in milliseconds
_LARGEST_COUNTER = 2**53
_AHEAD_S = 1.0  # records may be a little newer than the answer's `now`
_LARGEST_BIN = 3000
_LARGEST_ALPHA = 0.1  # with the largest bin: below what a float can hold


def trouble_of(telemetry: Telemetry, last: Telemetry | None) -> str:
    """Say why no decision can be made from the answer; empty when one can."""
    if not is_readable(telemetry):
        return "the pod's clock is not a number"
    if not telemetry.ready:
        return "the engine is not ready"
    limits, load, model = telemetry.limits, telemetry.load, telemetry.model
    if limits is None or load is None or model is None:
        return "telemetry lacks limits, load or model"
    if last is not None and telemetry.instance == last.instance:
        contradiction = _contradiction(last, telemetry)
        if contradiction:
            return contradiction
    return _limits_trouble(limits) or _load_trouble(load, limits) or _model_trouble(model)


def is_readable(telemetry: Telemetry) -> bool:
    """Whether its records may be taken over, and the next ones asked for."""
    return math.isfinite(telemetry.now) and telemetry.next >= 0


def is_valid_step(step: Step, now: float) -> bool:
    """Whether the step can have run before `now`."""
    return (
        -math.inf < step.at <= now + _AHEAD_S
        and abs(step.seq) <= _LARGEST_COUNTER
        and 0 < step.wall_ms <= _LARGEST
        and 0 <= step.decode <= _LARGEST
        and 0 <= step.prefill <= _LARGEST
        and 0 <= step.context <= _LARGEST
        and abs(step.attention) <= _LARGEST_COUNTER
        and 0 <= step.running <= _LARGEST
        and 0 <= step.waiting <= _LARGEST
        and abs(step.waiting_tokens) <= _LARGEST
        and abs(step.preemptions) <= _LARGEST
        and abs(step.epoch) <= _LARGEST
        and abs(step.paced_tokens) <= _LARGEST
        and abs(step.kv_used) <= _LARGEST
        and 1 <= step.weight <= _LARGEST
        and 0 <= step.num_decodes <= step.weight
    )


def is_valid_request(record: RequestRecord, now: float) -> bool:
    """Whether the request can have arrived, then ended before `now`."""
    return (
        -math.inf < record.arrived_at <= record.finished_at <= now + _AHEAD_S
        and abs(record.seq) <= _LARGEST_COUNTER
        and 0 <= (record.queue_ms or 0.0) <= _LARGEST
        and 0 <= (record.ttft_ms or 0.0) <= _LARGEST
        and 0 <= (record.tpot_ms or 0.0) <= _LARGEST
        and 0 <= (record.itl_max_ms or 0.0) <= _LARGEST
        and 0 <= record.prompt_tokens <= _LARGEST
        and 0 <= record.cached_tokens <= _LARGEST
        and 0 <= record.output_tokens <= _LARGEST
        and abs(record.epoch) <= _LARGEST
        and 1 <= record.weight <= _LARGEST
    )


def is_valid_slice(piece: SketchSlice, now: float) -> bool:
    """Whether the bins are numbers that stand for milliseconds."""
    return (
        math.isfinite(piece.start_at)
        and piece.start_at <= now + _AHEAD_S
        and 0 < piece.alpha <= _LARGEST_ALPHA
        and piece.zero >= 0
        and (not piece.bins or _are_bins(piece.bins))
    )


def _are_bins(bins: dict[int, int]) -> bool:
    counts = bins.values()
    return (
        min(bins) >= -_LARGEST_BIN
        and max(bins) <= _LARGEST_BIN
        and min(counts) >= 0
        and max(counts) <= _LARGEST
    )


def _contradiction(last: Telemetry, telemetry: Telemetry) -> str:
    if telemetry.now < last.now:
        return "the pod's clock went back"
    if telemetry.now == last.now:
        return "telemetry stands still"
    before, after = last.load, telemetry.load
    if before is not None and after is not None and after.output_tokens < before.output_tokens:
        return "counters went back without a new instance"
    return ""


def _limits_trouble(limits: LimitsAnswer) -> str:
    capacity = limits.capacity
    sizes = [
        capacity.max_batch_size,
        capacity.max_token_budget,
        capacity.num_blocks,
        capacity.block_size,
        capacity.max_model_len,
    ]
    targets = []
    for held in (limits.requested, limits.effective, limits.certified):
        sizes += [held.max_batch_size, held.token_budget]
        targets.append(held.step_target_ms)
        targets.append(None if held.pace_tpot_ms is UNSET else held.pace_tpot_ms)
    is_valid = all(1 <= size <= _LARGEST for size in sizes) and all(
        target is None or 0 < target <= _LARGEST for target in targets
    )
    return "" if is_valid and limits.epoch >= 0 else "the limits hold numbers that cannot be"


def _load_trouble(load: Load, limits: LimitsAnswer) -> str:
    counters = (
        load.waiting,
        load.waiting_tokens,
        load.prefix_queries,
        load.prefix_hits,
        load.preemptions,
        load.prompt_tokens,
        load.output_tokens,
        *load.running_output_tokens,
    )
    if load.running < 0 or not all(0 <= value <= _LARGEST_COUNTER for value in counters):
        return "the load holds numbers that cannot be"
    if load.running > limits.capacity.max_batch_size:
        return "more requests run than the pod has room for"
    return ""


def _model_trouble(model: ModelFit) -> str:
    is_valid = (
        len(model.theta) == 5  # noqa: PLR2004 - docs/runtime-api.md
        and _are_within((*model.theta, *model.correction), 0.0, _LARGEST)
        and _are_within((model.fast,), 0.1, 10.0)
        and _are_within((model.q_r,), 0.1, 1e3)
        and model.bin_tokens >= 1
        and math.isfinite(model.mape)
    )
    return "" if is_valid else "the step model holds numbers that cannot be"


def _are_within(values: Iterable[float], low: float, high: float) -> bool:
    return all(low <= value <= high for value in values)  # False for what is not a number
