"""The plan: what a pod of a service can do on a device, for a trace, with error bars.

Limits, capacity and floors are the tuner's own functions; p99s come from the simulated engine,
which plays the trace by the real scheduler's rules.
Error bars are the 5th to the 95th of draws, each of which takes step times scaled by a log-normal
factor, as wide as the device's prior is trusted, and blocks of the trace drawn anew.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import NormalDist
from typing import Final

from msgspec import structs

from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.plan.outlook import (
    Estimate,
    Latency,
    Outlook,
    PlannedCost,
    PlannedLimits,
    ServicePlan,
)
from paceline_cli.plan.sequences import last_blocks, preallocated_batch
from paceline_cli.plan.simulation import SimulatedLatencies, SimulatedPod, joined, simulated_pod
from paceline_cli.plan.trace_demand import (
    LengthBlocks,
    Stretch,
    around_peak,
    mix,
    peak,
    redrawn,
    redrawn_rate,
    share,
)
from paceline_cli.sla_targets import first_token_name
from paceline_cli.traffic.traces import TracedRequest
from paceline_engine.hardware.devices import BLOCK_TOKENS
from paceline_tuner.capacity import CapacityModel, EngineTraits, capacity_for
from paceline_tuner.condition import Obstacle
from paceline_tuner.demand import Demand
from paceline_tuner.pod_state import PodState
from paceline_tuner.propose import choose_limits
from paceline_tuner.recommendation import replicas_for
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.step_target import StepTarget
from paceline_tuner.telemetry import ModelFit

CAPACITY_DRAWS: Final = 200
SIMULATION_DRAWS: Final = 12
SIMULATED_REQUESTS: Final = 1500
_ENOUGH_REQUESTS: Final = 1000
"""Simulated before a p99 is believed; pods beyond those are like them."""
_ALONE_REQUESTS: Final = 300
_LOW, _HIGH = 0.05, 0.95
_Z: Final = 1.645  # standard deviations from the mean to the 5th or 95th percentile
_MOST_TIMES: Final = 16
"""Past so many times the replicas that the rate asks for, more do not help."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a plan is made from."""

    spec: TuningSpec
    max_batch_size: int
    """Capacity."""
    max_model_len: int | None
    memory: KvMemory
    model: ModelFit
    factor: float
    requests: tuple[TracedRequest, ...]


def plan(inputs: Inputs) -> ServicePlan:
    """Predict. A few seconds of computing; the same inputs give the same plan."""
    memory = inputs.memory
    if memory.num_blocks == 0:
        message = "the weights and the reserve leave no memory for keys and values"
        return _stopped(inputs, "DoesNotFit", message, 0)
    longest = memory.longest(inputs.max_model_len)
    kept = tuple(r for r in inputs.requests if r.prompt + r.output <= longest)
    num_left_out = len(inputs.requests) - len(kept)
    if len(kept) < 2 or kept[-1].at_s <= kept[0].at_s:  # noqa: PLR2004 - a rate has two ends
        message = f"hardly a request of the trace fits into {longest:,} tokens"
        return _stopped(inputs, "KVBound", message, num_left_out)
    planner = Planner(inputs, kept)
    outlook = planner.outlook()
    obstacle, message = planner.obstacle(outlook)
    return ServicePlan(
        sla=inputs.spec.sla,
        memory=memory,
        factor=inputs.factor,
        obstacle=obstacle,
        message=message,
        outlook=outlook,
        num_left_out=num_left_out,
    )


def _stopped(inputs: Inputs, obstacle: str, message: str, num_left_out: int) -> ServicePlan:
    sla, memory = inputs.spec.sla, inputs.memory
    return ServicePlan(sla, memory, inputs.factor, obstacle, message, None, num_left_out)


class Planner:
    """The steps of one plan, over the same inputs."""

    def __init__(self, inputs: Inputs, requests: Sequence[TracedRequest]) -> None:
        self._inputs = inputs
        self._requests = requests
        self._whole = Stretch(tuple(requests), requests[-1].at_s - requests[0].at_s)
        self._busiest = peak(requests)
        self._played = around_peak(requests, SIMULATED_REQUESTS)
        self._demand = mix(requests, inputs.spec.sla.objective)
        self._lengths = LengthBlocks.of(self._whole)
        target, room = self._aim(inputs.model, self._demand)
        self._chosen = choose_limits(inputs.spec, room, target)

    def limits(self) -> PlannedLimits:
        """The limits that the tuner will choose, and what the memory alone would allow."""
        caps, room = self._chosen.limits, self._room(self._inputs.model, self._demand)
        memory = self._inputs.memory
        longest = memory.longest(self._inputs.max_model_len)
        by_memory, _ = replace(room, target_ms=None).largest_batch(1 << 20)
        return PlannedLimits(
            batch_size=caps.batch_size,
            batch_bound=self._chosen.binding,
            token_budget=caps.token_budget,
            step_target_ms=caps.step_target_ms,
            kv_batch_size=by_memory if self._demand.held <= self._inputs.memory.tokens else 0,
            preallocated_batch_size=preallocated_batch(memory.tokens, longest, BLOCK_TOKENS),
        )

    def outlook(self) -> Outlook:
        """Predict everything about a service that fits."""
        model = self._inputs.model
        capacity = self._room(model, self._demand).sustainable_rps(self._chosen.limits.batch_size)
        by_rate = _by_rate(self._busiest.rps, capacity)
        replicas = self._enough(by_rate)
        served = self._simulated(self._played, replicas, model)
        random = Random(1)  # noqa: S311 - error bars, not secrets
        draws = [self._draw(share_, random) for share_ in _shares(CAPACITY_DRAWS)]
        rates = [rate for rate, _ in draws]
        wanted = [float(_by_rate(peak_rps, rate)) * replicas / by_rate for rate, peak_rps in draws]
        redraws = [
            self._simulated(redrawn(self._played, random), replicas, self._scaled(share_))
            for share_ in _shares(SIMULATION_DRAWS)
        ]
        sla = self._inputs.spec.sla
        readings = _readings(sla)
        return Outlook(
            limits=self.limits(),
            capacity_rps=_estimate(capacity, rates),
            peak_rps=_estimate(self._busiest.rps, [peak_rps for _, peak_rps in draws]),
            mean_rps=self._whole.rps,
            rate_replicas=by_rate,
            replicas=_estimate(replicas, [math.ceil(n - 1e-9) for n in wanted]),
            quantile=sla.objective,
            latencies=tuple(
                Latency(name, target, _estimate(read(served), [read(drawn) for drawn in redraws]))
                for name, target, read in readings
            ),
            attainment=_estimate(
                served.attainment(sla), [drawn.attainment(sla) for drawn in redraws]
            ),
            demand=self._demand,
            last_blocks=last_blocks(self._requests, BLOCK_TOKENS),
            cost=self._cost(capacity, replicas),
            num_simulated=len(served.ttft_ms),
            simulated_s=self._played.seconds,
        )

    def _cost(self, capacity_rps: float, replicas: int) -> PlannedCost | None:
        """Divide the price by the output tokens of a full pod, and of the trace."""
        price, tokens = self._inputs.spec.price_per_hour, self._demand.output
        if price is None or capacity_rps <= 0 or tokens <= 0:
            return None
        a_million = price * 1e6 / 3600 / tokens
        return PlannedCost(
            at_capacity=a_million / capacity_rps, by_trace=a_million * replicas / self._whole.rps
        )

    def obstacle(self, outlook: Outlook) -> tuple[Obstacle, str]:
        """Name what no number of replicas removes: a floor, or requests that miss even alone."""
        sla, model = self._inputs.spec.sla, self._inputs.model
        room = self._room(model, self._demand)
        if self._aim(model, self._demand)[0].is_below_floor:
            return "TPOTFloor", "one decode alone is slower than the target"
        has_one = sla.ttft_p99_ms is not None and not sla.ttft_by_prompt_tokens
        if has_one and room.ttft_floor_ms() > (sla.ttft_p99_ms or math.inf):
            return "TTFTFloor", "a long prompt alone takes longer than the target"
        if outlook.limits.kv_batch_size < 1:
            return "KVBound", "not one usual request fits into the KV cache"
        return self._alone_misses(self._alone(model))

    def _alone_misses(self, alone: SimulatedLatencies) -> tuple[Obstacle, str]:
        """Name the target that requests miss that have a pod to themselves."""
        sla = self._inputs.spec.sla
        if any(
            target is not None and read(alone) > target
            for name, target, read in _readings(sla)
            if name in {"TPOT", "ITL"}
        ):
            return "TPOTFloor", "the slowest of a hundred steps of one decode misses the target"
        for name, target, read in _first_tokens(sla):
            if target is not None and read(alone) > target:
                return "TTFTFloor", f"requests that each have a pod alone miss the {name} target"
        if sla.e2e_p99_ms is not None and alone.e2e(sla.objective) > sla.e2e_p99_ms:
            return "E2EFloor", "answers that each have a pod alone miss the target"
        return "", ""

    def _enough(self, by_rate: int) -> int:
        """Find the fewest replicas, from `by_rate` on, that keep the SLA when simulated."""
        low, high = by_rate - 1, by_rate
        while not self._keeps(high):
            low, high = high, high * 2
            if high > by_rate * _MOST_TIMES:
                return by_rate
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._keeps(middle) else (middle, high)
        return high

    def _keeps(self, replicas: int) -> bool:
        served = self._simulated(self._played, replicas, self._inputs.model)
        readings = _readings(self._inputs.spec.sla)
        return all(target is None or read(served) <= target for _, target, read in readings)

    def _simulated(self, stretch: Stretch, replicas: int, model: ModelFit) -> SimulatedLatencies:
        """Simulate as many pods as give enough requests for a p99."""
        replicas = min(replicas, len(stretch.requests))
        each = len(stretch.requests) / replicas
        pods = min(replicas, math.ceil(_ENOUGH_REQUESTS / each))
        pod = self._pod(model)
        return joined([pod.serve(share(stretch, replicas, i), seed=i + 1) for i in range(pods)])

    def _alone(self, model: ModelFit) -> SimulatedLatencies:
        """Serve some of the requests, each with a pod that does nothing else."""
        every = -(-len(self._played.requests) // _ALONE_REQUESTS)
        return self._pod(model).serve_alone(self._played.requests[::every])

    def _pod(self, model: ModelFit) -> SimulatedPod:
        memory = self._inputs.memory
        longest = memory.longest(self._inputs.max_model_len)
        return simulated_pod(model, self._chosen.limits, memory, longest, self._inputs.spec.sla)

    def _draw(self, quantile: float, random: Random) -> tuple[float, float]:
        """λ* and the peak, had the steps another speed and the trace come in another order."""
        demand = self._lengths.redrawn_mix(random, self._inputs.spec.sla.objective)
        model = self._scaled(quantile)
        target, room = self._aim(model, demand)
        batch = choose_limits(self._inputs.spec, room, target).limits.batch_size
        return room.sustainable_rps(batch), redrawn_rate(self._busiest, random)

    def _scaled(self, quantile: float) -> ModelFit:
        """The model at the `quantile` of its uncertainty: higher is slower."""
        sigma = math.log(self._inputs.factor) / _Z
        factor = math.exp(sigma * NormalDist().inv_cdf(quantile))
        theta = tuple(value * factor for value in self._inputs.model.theta)
        return structs.replace(self._inputs.model, theta=theta)

    def _aim(self, model: ModelFit, demand: Demand) -> tuple[StepTarget, CapacityModel]:
        """What the tuner aims at once it has settled; on a CPU it paces each request."""
        inputs = self._inputs
        engine = EngineTraits(
            inputs.memory.capacity(inputs.max_batch_size, inputs.max_model_len),
            min_prefill=inputs.memory.device.min_prefill,
            has_slack=inputs.memory.device.is_cpu,
        )
        # Replicas are added until there is no queue to speak of.
        served = replace(demand, arrival_rps=0.0)
        settled = PodState(demand=served, unattainable="TPOTFloor")
        return capacity_for(inputs.spec, settled, model, engine)

    def _room(self, model: ModelFit, demand: Demand) -> CapacityModel:
        return self._aim(model, demand)[1]


Reading = tuple[str, float | None, Callable[[SimulatedLatencies], float]]
"""A latency's name, its target, and what reads it."""


def _by_rate(arrivals_rps: float, capacity_rps: float) -> int:
    """Count the pods that arrivals need; one where a pod serves nothing, which more do not mend."""
    return replicas_for(arrivals_rps, capacity_rps) if capacity_rps > 0 else 1


def _readings(sla: SLA) -> list[Reading]:
    share = sla.objective
    readings: list[Reading] = [
        *_first_tokens(sla),
        ("TPOT", sla.tpot_p99_ms, lambda served: served.tpot(share)),
        ("ITL", sla.itl_p99_ms, lambda served: served.itl(share)),
    ]
    if sla.e2e_p99_ms is not None:
        readings.append(("E2E", sla.e2e_p99_ms, lambda served: served.e2e(share)))
    return readings


def _first_tokens(sla: SLA) -> list[Reading]:
    """List one reading, or one for each class of prompts."""
    share = sla.objective
    if not sla.ttft_by_prompt_tokens:
        return [("TTFT", sla.ttft_p99_ms, lambda served: served.ttft(share))]
    classes = zip(sla.shortest_prompts, sla.ttft_by_prompt_tokens, strict=True)
    return [
        (
            first_token_name(least, each.up_to),
            each.ttft_p99_ms,
            partial(SimulatedLatencies.ttft, share=share, least=least, up_to=each.up_to),
        )
        for least, each in classes
    ]


def _shares(count: int) -> list[float]:
    """Quantiles that together show a whole distribution."""
    return [(index + 0.5) / count for index in range(count)]


def _estimate(value: float, draws: Sequence[float]) -> Estimate:
    ordered = sorted(draws)
    low, high = (ordered[round(q * (len(ordered) - 1))] for q in (_LOW, _HIGH))
    return Estimate(value, min(low, value), max(high, value))
