"""One warm start for all processes that tune: the operator's reads and writes it for each."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from paceline_operator.sharding.channel import Channel
from paceline_operator.sharding.messages import (
    FromShard,
    ToShard,
    WarmStartAnswer,
    WarmStartFound,
    WarmStartWanted,
)
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_json import decode, encode
from paceline_tuner.warm_start_store import StoreError, WarmStartStore


@dataclass(slots=True)
class SharedWarmStart:
    """The operator's end: one read or write at a time, and what is saved is joined."""

    store: WarmStartStore
    clock: Callable[[], float] = time.time
    _one_at_a_time: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def answer(self, asked: WarmStartWanted | WarmStartFound) -> WarmStartAnswer:
        """Read it, or join what was found to it. Never raises for what the store does."""
        try:
            async with self._one_at_a_time:
                stored = await self.store.load()
                if isinstance(asked, WarmStartFound):
                    found, _ = decode(asked.text)
                    stored = await self._join(stored, found)
        except StoreError as problem:
            return WarmStartAnswer(asked.number, "", str(problem))
        return WarmStartAnswer(asked.number, encode(stored), "")

    async def _join(self, stored: WarmStart, found: WarmStart) -> WarmStart:
        joined = stored.merged(found, self.clock())
        if joined != stored:
            await self.store.save(joined)
        return joined


@dataclass(slots=True)
class DistantStore:
    """WarmStartStore of a process that tunes: it asks the operator's."""

    channel: Channel[FromShard, ToShard]
    _numbers: Iterator[int] = field(init=False, default_factory=itertools.count)
    _asked: dict[int, asyncio.Future[WarmStartAnswer]] = field(init=False, default_factory=dict)

    async def load(self) -> WarmStart:
        """Read it; empty where there is none. Raises StoreError."""
        answer = await self._ask(WarmStartWanted(next(self._numbers)))
        return decode(answer.text)[0]

    async def save(self, warm_start: WarmStart) -> None:
        """Have it joined to what others found. Raises StoreError."""
        await self._ask(WarmStartFound(next(self._numbers), encode(warm_start)))

    def hear(self, answer: WarmStartAnswer) -> None:
        """Take what the operator's process answered."""
        future = self._asked.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    async def _ask(self, message: WarmStartWanted | WarmStartFound) -> WarmStartAnswer:
        future = self._asked[message.number] = asyncio.get_running_loop().create_future()
        self.channel.put(message, message)
        try:
            answer: WarmStartAnswer = await future
        finally:
            del self._asked[message.number]
        if answer.problem:
            raise StoreError(answer.problem)
        return answer
