"""Arm: one way to choose limits, described so that an episode can be run with it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from paceline_engine.pacing import Pacer
from paceline_tuner.pods import PodClient
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity, Limits
from tune_report.settings import ServingSetting

PERIOD_S = 5.0
Verdict = Literal["True", "False", "Unknown", ""]
"""The status of a condition; empty where an arm does not report it."""


class Control(Protocol):
    """Changes limits from outside the engine, once a period, through the runtime API."""

    async def tick(self, pods: tuple[PodTarget, ...], sla: SLA) -> Verdict:
        """Look and act; return the status of SLAAchievable."""
        ...


@runtime_checkable
class WatchesDevice(Protocol):
    """A control that reports on the device too."""

    device: Verdict
    """The status of DeviceHealthy after the last tick."""


MakeControl = Callable[[PodClient, Callable[[], float], ServingSetting], Control]
MakePacer = Callable[[ModelInfo, Capacity], Pacer]


@dataclass(frozen=True, slots=True)
class Arm:
    """Start limits, and what acts on them: a pacer inside, a control outside, or neither."""

    name: str
    start: tuple[int, int]
    """Max batch size and token budget of a fresh pod."""
    pacer: MakePacer | None = None
    control: MakeControl | None = None
    sheds: bool = True
    """Requests that have waited too long for their TTFT are dropped at the head of the queue."""
    patches: Callable[[], AbstractContextManager[object]] = nullcontext
    """Switches a guard of the product off for as long as an episode runs."""
    token_capacity: int | None = None
    """What a pod allocates, where the rule needs more than the setting has."""
    uses_product: bool = False
    """Its results change with the tuner's code."""

    def limits(self, capacity: Capacity) -> Limits:
        """What a fresh pod holds."""
        batch, budget = self.start
        batch = min(batch, capacity.max_batch_size)
        return Limits(batch, max(batch, min(budget, capacity.max_token_budget)))

    def capacity(self, setting: ServingSetting) -> Capacity:
        """What a pod allocates under this arm."""
        of_setting = setting.capacity
        if self.token_capacity is None:
            return of_setting
        return Capacity(
            of_setting.max_batch_size,
            self.token_capacity,
            of_setting.num_blocks,
            of_setting.block_size,
            of_setting.max_model_len,
        )


def static(batch: int, budget: int) -> Arm:
    """Fixed limits."""
    return Arm(f"static {batch}/{budget}", (batch, budget))
