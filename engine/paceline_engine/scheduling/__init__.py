"""Which request gets how many tokens of the next step. No torch here."""

from collections.abc import Collection
from typing import Literal

from paceline_engine.drafting.speculation import Speculation
from paceline_engine.kv_cache.swap import Swapper
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.scheduling.request_table import RequestTable
from paceline_engine.scheduling.scheduler import ContinuousScheduler, Plan, Scheduler
from paceline_engine.scheduling.static_batching import DynamicScheduler, Gathering, StaticScheduler
from paceline_wire.limits import Capacity

__all__ = ["Gathering", "Plan", "Scheduler", "Scheduling", "make_scheduler"]

Scheduling = Literal["continuous", "dynamic", "static"]


def make_scheduler(
    scheduling: Scheduling,
    capacity: Capacity,
    pacer: Pacer,
    *,
    eos_token_ids: Collection[int] = (),
    prefix_caching: bool = True,
    swapper: Swapper | None = None,
    speculation: Speculation | None = None,
    gathering: Gathering | None = None,
) -> Scheduler:
    """Make a scheduler by its name. Only the continuous one shares prefixes and speculates."""
    requests = RequestTable(
        capacity,
        pacer,
        eos_token_ids=eos_token_ids,
        # Padding is computed into a request's own blocks, which nobody else may share.
        prefix_caching=prefix_caching and scheduling == "continuous",
        swapper=swapper,
    )
    if scheduling == "continuous":
        return ContinuousScheduler(requests, pacer, speculation)
    if scheduling == "dynamic":
        return DynamicScheduler(requests, gathering)
    return StaticScheduler(requests)
