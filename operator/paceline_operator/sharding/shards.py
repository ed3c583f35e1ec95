"""Shards: a Tuner that gives each service to one of several processes, by its uid."""

import asyncio
from dataclasses import dataclass, field

from paceline_operator.metrics import Metrics
from paceline_operator.rounds import Listener
from paceline_operator.sharding.messages import Follow
from paceline_operator.sharding.shard import Program, Shard
from paceline_operator.sharding.shares import shard_of
from paceline_operator.sharding.warm_starts import SharedWarmStart
from paceline_tuner.annotations import Annotation
from paceline_tuner.service_target import ServiceTarget


@dataclass(slots=True)
class Shards:
    """Tuner whose work is done beside this process."""

    listener: Listener
    warm_start: SharedWarmStart
    metrics: Metrics
    num_shards: int
    program: Program
    shards: tuple[Shard, ...] = field(init=False)
    _homes: dict[str, Shard] = field(init=False, default_factory=dict)
    """The shard of each service, by its key."""

    def __post_init__(self) -> None:
        """Name the shards; `run` starts their processes."""
        self.shards = tuple(
            Shard(number, self.listener, self.warm_start, self._learned, self.metrics, self.program)
            for number in range(self.num_shards)
        )

    def grant(self, shard: int, until: float) -> None:
        """Let limits of a shard's pods be changed until then, in monotonic seconds.

        A past moment ends it.
        """
        self.shards[shard].grant(until)

    def follow(self, uid: str, target: ServiceTarget) -> None:
        """Have this tuned from now on; at once if it differs from what was tuned."""
        home = self.shards[shard_of(uid, self.num_shards)]
        self._homes[target.key] = home
        home.follow(Follow(uid, target))

    def forget(self, key: str) -> None:
        """Have a service forgotten that is gone."""
        if (home := self._homes.pop(key, None)) is not None:
            home.forget(key)

    def is_tuning(self, key: str) -> bool:
        """Tell whether the process of this service is up."""
        home = self._homes.get(key)
        return home is not None and home.is_tuning(key)

    async def annotations(self, since_ms: float) -> list[Annotation]:
        """Mark what was decided since then, in Unix milliseconds, oldest first."""
        found = await asyncio.gather(*(shard.annotations(since_ms) for shard in self.shards))
        return sorted((mark for marks in found for mark in marks), key=lambda mark: mark.time)

    async def run(self) -> None:
        """Keep all processes running until cancelled; then they are dead."""
        async with asyncio.TaskGroup() as group:
            for shard in self.shards:
                group.create_task(shard.run(), name=f"shard {shard.number}")

    def _learned(self, by: Shard, text: str) -> None:
        for shard in self.shards:
            if shard is not by:
                shard.learn(text)
