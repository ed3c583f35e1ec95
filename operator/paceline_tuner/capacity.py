"""CapacityModel: what a pod could do at best: the largest batch, the useful budget, λ*, floors."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from paceline_tuner.balance import Balance, balance
from paceline_tuner.demand import Demand
from paceline_tuner.end_to_end import TokenRoom, token_room
from paceline_tuner.forecast import Forecast
from paceline_tuner.pod_state import PodState
from paceline_tuner.records import Column, Mask
from paceline_tuner.service_spec import Range, TuningSpec
from paceline_tuner.step_target import StepTarget, step_target, tail
from paceline_tuner.telemetry import CapacityValues, ModelFit
from paceline_wire.step_cost import chunk_attention

_KV_SHARE = 0.95
_KV_DEVIATIONS = 2.33  # 99 of 100
_CAPACITY_SHARE = 0.9  # of what the model says: bursts, and the model's error
_TTFT_MARGIN = 1.3
_SIZES = tuple(dict.fromkeys(int(1.25**k) for k in range(40)))  # up to 6,000 sequences
_LEAST_RPS = 1e-9


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What an engine was started with, as far as limits depend on it."""

    capacity: CapacityValues
    min_prefill: int
    """Prefill tokens that the pacer grants to every step."""
    has_slack: bool
    """It can pace each request by its slack, and gains by it."""


@dataclass(frozen=True, slots=True)
class CapacityModel:
    """One pod's step forecast and demand, within its capacity and its step target."""

    forecast: Forecast
    demand: Demand
    capacity: CapacityValues
    target_ms: float | None
    """The step target, with q_r included; None where no SLA asks for one."""
    min_prefill: int
    longest_ms: float | None = None
    """What a step may take where requests are ahead; None where `target_ms` holds for each."""
    room: TokenRoom | None = None
    """What the end-to-end target leaves for a mean step; None without one."""

    def largest_batch(self, top: int) -> tuple[int, str]:
        """Find the largest safe occupancy up to `top`, and what bounds it."""
        by_memory = self._largest(top, self._fits)
        by_pace = self._largest(top, self._keeps_pace)
        by_end = top if self.room is None else self._in_time(top, self.room)
        if by_end < min(by_memory, by_pace):
            return by_end, "SLA:e2e"
        if by_pace < by_memory:
            return by_pace, "SLA"
        return by_memory, "KV" if by_memory < top else "Capacity"

    def serving_batch(self, batch: int, top: int) -> int:
        """Find the occupancy that λ* is reckoned with: what is served without a queue.

        That is `batch`, or a larger one up to `top` where a queue alone made it so small.
        """
        if self.room is None:
            return batch
        at_once = self._keeps_mean(top, self.room.at_once_ms)
        return max(batch, min(at_once, self._largest(top, self._keeps_pace)))

    def useful_budget(self, top: int) -> int:
        """Find the most tokens that a step with at least one decode can hold within the target."""
        longest_ms = self.longest_ms or self.target_ms
        if longest_ms is None:
            return top
        low, high = 1, top
        while low < high:
            middle = (low + high + 1) // 2
            if self._with_q_r(decode=1, prefill=middle - 1) <= longest_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def sustainable_rps(self, batch: int) -> float:
        """Find λ*, the most requests per second at the present mix with at most `batch` running."""
        sizes = _sizes_up_to(batch)
        step_ms = self._mean_steps_ms(sizes)
        rates = 1e3 * (sizes / max(self.demand.output, 1.0)) / step_ms
        is_served = self._fit(sizes)
        if self.target_ms is not None:
            is_served &= step_ms * self.forecast.model.q_r <= self.target_ms
        return _CAPACITY_SHARE * float(rates[is_served].max(initial=0.0))

    def capacity_by_target(self) -> Callable[[float], float]:
        """Return λ*, requests per second at the present mix, by step target, ms."""
        top = self._largest(self.capacity.max_batch_size, self._fits)
        sizes = np.array([*(size for size in _SIZES if size < top), top], np.float64)
        step_ms, ends = self._mean_steps_ms(sizes), sizes / max(self.demand.output, 1.0)
        slowest = np.maximum.accumulate(step_ms * self.forecast.model.q_r)
        times: list[float] = [0.0, *slowest.tolist()]
        growing = np.maximum.accumulate(_CAPACITY_SHARE * 1e3 * ends / step_ms)
        rates: list[float] = [0.0, *growing.tolist()]
        most_rps = rates[-1]

        def capacity_rps(target_ms: float) -> float:
            after = bisect_right(times, target_ms)
            if after == len(times):
                return most_rps
            part = (target_ms - times[after - 1]) / (times[after] - times[after - 1])
            return rates[after - 1] + part * (rates[after] - rates[after - 1])

        return capacity_rps

    def full_step_ms(self, batch: int) -> float:
        """Predict a step with `batch` decodes and the least prefill, without q_r."""
        return self.forecast.chunk_ms(
            decode=batch,
            prefill=self.min_prefill,
            context=batch * self.demand.context,
            before=0.0,
        )

    def floor_ms(self) -> float:
        """Predict a step with one decode and nothing else: no setting makes a gap shorter."""
        return self.forecast.step_ms(decode=1, prefill=0, context=self.demand.context)

    def prefill_ms(self, *, decode: float, budget: int, prompt: float | None = None) -> float:
        """Predict how long a prompt of so many tokens takes while `decode` sequences run.

        Without `prompt`, it is the longest usual one.
        """
        prompt = self.demand.prompt_p99 if prompt is None else prompt
        chunk = min(float(self._chunk(decode, budget)), prompt)
        steps = prompt / max(chunk, 1.0)
        return steps * self.forecast.chunk_ms(
            decode=decode,
            prefill=chunk,
            context=decode * self.demand.context,
            before=prompt / 2,
        )

    def ttft_ms(self, *, decode: float, budget: int, queued_tokens: float) -> float:
        """Predict the first token of a long prompt that arrives now, behind the queued prompts."""
        backlog = 1 + queued_tokens / max(self.demand.prompt_p99, 1.0)
        return _TTFT_MARGIN * backlog * self.prefill_ms(decode=decode, budget=budget)

    def ttft_floor_ms(self, prompt: float | None = None) -> float:
        """Predict a prompt, as in `prefill_ms`, alone on the pod."""
        return self.prefill_ms(decode=0, budget=self.capacity.max_token_budget, prompt=prompt)

    def e2e_floor_ms(self) -> float:
        """Predict a long prompt and an answer of the objective's length, alone on the pod."""
        tokens = max(self.demand.output_high - 1, 0.0)
        return self.ttft_floor_ms() + tokens * self.floor_ms()

    def _chunk(self, decode: float, budget: int) -> int:
        """Find how many prefill tokens a paced step holds beside `decode` sequences."""
        top = max(budget - int(decode), 1)
        if decode == 0 or self.target_ms is None:
            return top
        low, high = min(self.min_prefill, top), top
        while low < high:
            middle = (low + high + 1) // 2
            if self._with_q_r(decode=decode, prefill=middle) <= self.target_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _largest(self, top: int, allows: Callable[[int], bool]) -> int:
        low, high = 1, top
        while low < high:
            middle = (low + high + 1) // 2
            if allows(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _fits(self, n: int) -> bool:
        demand = self.demand
        wanted = n * demand.held + _KV_DEVIATIONS * demand.kv_deviation * math.sqrt(n)
        return wanted <= self._room

    def _fit(self, sizes: Column) -> Mask:
        demand = self.demand
        wanted = sizes * demand.held + _KV_DEVIATIONS * demand.kv_deviation * np.sqrt(sizes)
        fits: Mask = wanted <= self._room
        return fits

    @property
    def _room(self) -> float:
        """Tokens whose KV may be held."""
        return _KV_SHARE * (self.capacity.num_blocks * self.capacity.block_size)

    def _keeps_pace(self, n: int) -> bool:
        if self.target_ms is None:
            return True
        return self._with_q_r(decode=n, prefill=self.min_prefill) <= self.target_ms

    def _in_time(self, top: int, room: TokenRoom) -> int:
        """Find the occupancy with which long answers end in time.

        Where all that arrive can be served so, nobody waits long, and the largest occupancy is
        taken with which an answer that begins at once is in time. Else there will be a queue, and
        who has waited as long as admission allows must still be in time.
        """
        most = self._keeps_mean(top, room.at_once_ms)
        is_served = self.sustainable_rps(most) >= self.demand.arrival_rps
        return most if is_served else self._keeps_mean(top, room.queued_ms)

    def _keeps_mean(self, top: int, mean_ms: float) -> int:
        return self._largest(top, lambda n: self._mean_step_ms(n) <= mean_ms)

    def _mean_step_ms(self, n: int) -> float:
        """Predict the mean step with `n` running; prompts come as fast as sequences end."""
        demand = self.demand
        ends = n / max(demand.output, 1.0)
        return self.forecast.step_ms(
            decode=n,
            prefill=ends * demand.prompt,
            context=n * demand.context,
            attention=ends * chunk_attention(demand.prompt, before=demand.cached),
        )

    def _mean_steps_ms(self, sizes: Column) -> Column:
        """Predict the same for each of some sizes."""
        demand = self.demand
        ends = sizes / max(demand.output, 1.0)
        return self.forecast.steps_ms(
            decode=sizes,
            prefill=ends * demand.prompt,
            context=sizes * demand.context,
            attention=ends * chunk_attention(demand.prompt, before=demand.cached),
        )

    def _with_q_r(self, *, decode: float, prefill: float) -> float:
        step_ms = self.forecast.chunk_ms(
            decode=decode, prefill=prefill, context=decode * self.demand.context, before=0.0
        )
        return step_ms * self.forecast.model.q_r


@lru_cache(maxsize=1024)
def _sizes_up_to(batch: int) -> Column:
    """List occupancies up to this one, an eighth apart."""
    sizes, n = [], 1
    while n < batch:
        sizes.append(n)
        n = max(n + 1, n * 9 // 8)
    return np.array([*sizes, batch], np.float64)


def capacity_for(
    spec: TuningSpec,
    state: PodState,
    model: ModelFit,
    engine: EngineTraits,
    *,
    quickest_ms: float = math.inf,
) -> tuple[StepTarget, CapacityModel]:
    """Derive the step target of a pod, and what the pod can do within it.

    A floor cannot be above `quickest_ms`, what a step was measured to take.
    """
    forecast, demand = Forecast(model), state.demand
    floor_ms = forecast.step_ms(decode=1, prefill=0, context=demand.context)
    trim = state.trim * spec.step_margin
    unpaced = CapacityModel(forecast, demand, engine.capacity, None, engine.min_prefill)
    target = step_target(
        spec.sla,
        model,
        trim=trim,
        floor_ms=min(floor_ms, quickest_ms),
        gives_up=state.believes_floor,
        has_slack=engine.has_slack,
        balance=_balanced(spec.sla.itl_p99_ms, unpaced, trim) if model.valid else None,
    )
    capacity_model = CapacityModel(
        forecast,
        demand,
        engine.capacity,
        target.ms,
        engine.min_prefill,
        longest_ms=target.longest_ms,
    )
    if spec.sla.e2e_p99_ms is None:
        return target, capacity_model
    room = token_room(spec.sla, demand, first_token_ms=capacity_model.ttft_floor_ms())
    return target, replace(capacity_model, room=room)


def _balanced(itl_ms: float | None, unpaced: CapacityModel, trim: float) -> Balance | None:
    """Weigh late gaps against capacity lost; None where gaps have no target."""
    if itl_ms is None:
        return None
    capacity_rps, model = unpaced.capacity_by_target(), unpaced.forecast.model
    most = tail(model)
    most_rps = max(capacity_rps(itl_ms * most * trim), _LEAST_RPS)
    return balance(
        model.q_r,
        unpaced.demand.output,
        lambda share: capacity_rps(itl_ms * share * trim) / most_rps,
        most=most,
    )


def within_bounds(
    spec: TuningSpec, capacity_model: CapacityModel, batch: int, budget: int
) -> tuple[int, int]:
    """Keep to the pod's capacity and the user's bounds; every step has room for prefill."""
    capacity = capacity_model.capacity
    batch = within(batch, spec.batch_size, capacity.max_batch_size)
    budget = max(budget, batch + capacity_model.min_prefill)
    return batch, max(within(budget, spec.token_budget, capacity.max_token_budget), batch)


def within(value: int, bounds: Range, capacity: int) -> int:
    """Return the nearest value that the bounds allow and the pod has."""
    top = min(bounds.max or capacity, capacity)
    return max(min(value, top), min(bounds.min, top))
