"""The three schedulings by name."""

from collections.abc import Mapping
from typing import Literal

from paceline_engine.scheduling.gathered import DynamicScheduler, StaticScheduler
from paceline_engine.scheduling.scheduler import Scheduler

Scheduling = Literal["continuous", "dynamic", "static"]

SCHEDULERS: Mapping[Scheduling, type[Scheduler]] = {
    "continuous": Scheduler,
    "dynamic": DynamicScheduler,
    "static": StaticScheduler,
}
