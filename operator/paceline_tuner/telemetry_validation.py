"""Telemetry validation: what a pod's telemetry can hold, and what it cannot. Pure.

A pod may be broken in any way. No decision is made from an answer that cannot be true; a single
impossible record is left out.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic

import numpy as np
from msgspec import UNSET

from paceline_tuner.records import REQUESTS, STEPS, Column, Layout, Mask, Record
from paceline_tuner.telemetry import (
    LimitsAnswer,
    Load,
    ModelFit,
    RequestRecord,
    RequestRow,
    SketchSlice,
    Step,
    StepRow,
    Telemetry,
)

_LARGEST = 1e9  # of any coefficient, count of tokens or time in milliseconds
_LARGEST_COUNTER = 2**53
_AHEAD_S = 1.0  # records may be a little newer than the answer's `now`
_LARGEST_BIN = 3000
_LEAST_ALPHA = 1e-4  # of less, bins are so narrow that a float cannot tell them apart
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
        step.at <= now + _AHEAD_S and _OF_STEPS.hold(step) and 0 <= step.num_decodes <= step.weight
    )


def is_valid_request(record: RequestRecord, now: float) -> bool:
    """Whether the request can have arrived, then ended before `now`."""
    return record.arrived_at <= record.finished_at <= now + _AHEAD_S and _OF_REQUESTS.hold(record)


def valid_steps(steps: Sequence[Step], newest_at: float, now: float) -> Column | None:
    """Return the numbers of all steps if each is valid and they are in time order.

    None where they have to be looked at one by one. `newest_at` is when the last step before ran.
    """
    matrix = _OF_STEPS.matrix(steps)
    if matrix is None:
        return None
    decodes, weights = matrix[:, _DECODES], matrix[:, _WEIGHT]
    is_valid = _is_in_turn(matrix[:, _AT], newest_at, now) and not (decodes > weights).any()
    return matrix if is_valid else None


def valid_requests(
    requests: Sequence[RequestRecord], newest_at: float, now: float
) -> Column | None:
    """Give the numbers of all requests, as `valid_steps` does."""
    matrix = _OF_REQUESTS.matrix(requests)
    if matrix is None:
        return None
    arrived, finished = matrix[:, _ARRIVED_AT], matrix[:, _FINISHED_AT]
    is_valid = _is_in_turn(finished, newest_at, now) and (arrived <= finished).all()
    return matrix if is_valid else None


def _is_in_turn(times: Column, newest_at: float, now: float) -> bool:
    is_growing = bool((times[1:] >= times[:-1]).all())
    return is_growing and bool(newest_at <= times[0] and times[-1] <= now + _AHEAD_S)


class _Bounds(Generic[Record]):
    """What the numbers of a kind of record can be."""

    def __init__(self, layout: Layout[Record], bounds: Mapping[str, tuple[float, float]]) -> None:
        """Know the bounds of some fields, both included; what is None is within them."""
        self._layout = layout
        self._bounds = bounds
        names = layout.numbers
        self._optional = [n for n in names if layout.types[n] in {int | None, float | None}]
        self._is_optional = np.array([name in self._optional for name in names])
        self._low, self._high = np.array(
            [bounds.get(name, (-math.inf, math.inf)) for name in names]
        ).T
        # A whole number beyond this bound may be rounded to it.
        self._high[self._high == _LARGEST_COUNTER] -= 1
        self._low[self._low == -_LARGEST_COUNTER] += 1

    def hold(self, record: Step | RequestRecord) -> bool:
        """Tell whether all numbers of one record are within them."""
        for name, (low, high) in self._bounds.items():
            value = getattr(record, name)
            if value is not None and not low <= value <= high:
                return False
        return True

    def matrix(self, records: Sequence[Any]) -> Column | None:
        """Give all numbers, where all are within the bounds; None where one may not be."""
        if not records:
            return None
        try:
            matrix = self._layout.matrix(records)
        except OverflowError:
            return None
        is_within = (matrix >= self._low) & (matrix <= self._high)
        if is_within.all() or self._lack_only(records, matrix, is_within):
            return matrix
        return None

    def _lack_only(self, records: Sequence[Any], matrix: Column, is_within: Mask) -> bool:
        """Tell whether all values out of bounds are missing ones (None), none of them a NaN."""
        is_lacking = np.isnan(matrix) & self._is_optional
        if not (is_within | is_lacking).all():
            return False
        num = sum(getattr(each, name) is None for each in records for name in self._optional)
        return num == np.count_nonzero(is_lacking)


_LARGE = (0.0, _LARGEST)
_SIGNED = (-_LARGEST, _LARGEST)
_COUNTER = (float(-_LARGEST_COUNTER), float(_LARGEST_COUNTER))
_TIME = (-sys.float_info.max, math.inf)
_OF_STEPS: Final[_Bounds[StepRow]] = _Bounds(
    STEPS,
    {
        "at": _TIME,
        "seq": _COUNTER,
        "wall_ms": (math.ulp(0.0), _LARGEST),
        "decode": _LARGE,
        "prefill": _LARGE,
        "context": _LARGE,
        "attention": _COUNTER,
        "running": _LARGE,
        "waiting": _LARGE,
        "waiting_tokens": _SIGNED,
        "preemptions": _SIGNED,
        "epoch": _SIGNED,
        "paced_tokens": _SIGNED,
        "kv_used": _SIGNED,
        "weight": (1.0, _LARGEST),
        "decodes": _LARGE,
    },
)
_OF_REQUESTS: Final[_Bounds[RequestRow]] = _Bounds(
    REQUESTS,
    {
        "arrived_at": _TIME,
        "finished_at": _TIME,
        "seq": _COUNTER,
        "queue_ms": _LARGE,
        "ttft_ms": _LARGE,
        "tpot_ms": _LARGE,
        "itl_max_ms": _LARGE,
        "prompt_tokens": _LARGE,
        "cached_tokens": _LARGE,
        "output_tokens": _LARGE,
        "epoch": _SIGNED,
        "weight": (1.0, _LARGEST),
    },
)
_AT, _DECODES, _WEIGHT = (STEPS.numbers.index(name) for name in ("at", "decodes", "weight"))
_ARRIVED_AT, _FINISHED_AT = (REQUESTS.numbers.index(n) for n in ("arrived_at", "finished_at"))


def is_valid_slice(piece: SketchSlice, now: float) -> bool:
    """Whether the bins are numbers that stand for milliseconds."""
    return (
        math.isfinite(piece.start_at)
        and piece.start_at <= now + _AHEAD_S
        and _LEAST_ALPHA <= piece.alpha <= _LARGEST_ALPHA
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
        load.accepted_tokens,
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
