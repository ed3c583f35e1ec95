"""The words of a plan: predictions with error bars, limits, and what stands in the way."""

from dataclasses import dataclass

from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.plan.sequences import LastBlocks
from paceline_tuner.condition import Obstacle
from paceline_tuner.demand import Demand
from paceline_tuner.service_spec import SLA


@dataclass(frozen=True, slots=True)
class Estimate:
    """A prediction with its error bar."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PlannedLimits:
    """What the tuner would choose for a pod at full load."""

    batch_size: int
    batch_bound: str
    """`SLA:itl`, `SLA:tpot`, `SLA:e2e`, `KV`, `Capacity` or `Bounds`."""
    token_budget: int
    step_target_ms: float | None
    kv_batch_size: int
    """What the KV memory alone allows, were the rows unlimited."""
    preallocated_batch_size: int
    """The same, had each sequence room for the longest one from its start."""


@dataclass(frozen=True, slots=True)
class PlannedCost:
    """What a million output tokens costs, in the currency of resources.pricePerHour."""

    at_capacity: float
    """By a pod that serves all that it can within the SLA."""
    by_trace: float
    """By the planned replicas, over the whole trace: they idle outside its peak."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One predicted quantile beside its target."""

    name: str
    target_ms: float | None
    predicted_ms: Estimate

    @property
    def is_met(self) -> bool | None:
        """None without a target."""
        return None if self.target_ms is None else self.predicted_ms.value <= self.target_ms


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to be expected of the service."""

    limits: PlannedLimits
    capacity_rps: Estimate
    """λ* of one pod."""
    peak_rps: Estimate
    """The trace's busiest minute."""
    mean_rps: float
    rate_replicas: int
    """By capacity and peak alone."""
    replicas: Estimate
    quantile: float
    """Of the latencies: the SLA's objective."""
    latencies: tuple[Latency, ...]
    attainment: Estimate
    demand: Demand
    last_blocks: LastBlocks
    cost: PlannedCost | None
    """None without a declared price."""
    num_simulated: int
    simulated_s: float


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The whole answer."""

    sla: SLA
    memory: KvMemory
    factor: float
    """Step times are believed within times or over this."""
    obstacle: Obstacle | str
    """A reason of docs/conditions.md that more replicas do not remove, or empty."""
    message: str
    outlook: Outlook | None
    """None where the model does not fit."""
    num_left_out: int
    """Requests of the trace that are longer than a sequence may be."""
