"""Recollection: the tuner's memory while it runs, and when it is read and written."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol

from paceline_tuner.decision import Decision
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.warm_start import StartingPoint, WarmStart
from paceline_tuner.warm_start_entry import EngineKey
from paceline_tuner.warm_start_lesson import to_remember
from paceline_tuner.window import Evidence

_SAVE_SPACING_S = 60.0
_LOAD_SPACING_S = 10.0

_log = logging.getLogger(__name__)


class StoreError(Exception):
    """What is remembered could not be read or written now."""


class WarmStartStore(Protocol):
    """Where the memory outlives its process."""

    async def load(self) -> WarmStart:
        """Read it; empty where there is none. Raises StoreError."""
        ...

    async def save(self, book: WarmStart) -> None:
        """Write it whole. Raises StoreError."""
        ...


class LiveWarmStart:
    """One book for all services. Without a store it stays empty and is never written."""

    def __init__(self, store: WarmStartStore | None, clock: Callable[[], float]) -> None:
        """Keep the book in `store`; `clock` gives Unix seconds."""
        self.book = WarmStart()
        self._store = store
        self._clock = clock
        self._is_open = False
        self._tried_at = -math.inf
        self._saved: WarmStart | None = None
        self._saved_at = -math.inf
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Read what was remembered before, if that has not succeeded yet. Never raises."""
        async with self._one_at_a_time:
            now = self._clock()
            if self._store is None or self._is_open or now - self._tried_at < _LOAD_SPACING_S:
                return
            self._tried_at = now
            try:
                stored = await self._store.load()
            except StoreError as problem:
                _log.warning("the memory cannot be read: %s", problem)
                return
            self.book = self.book.merged(stored, now)
            self._saved, self._is_open = stored, True

    def recall(self, spec: TuningSpec, evidence: Evidence) -> StartingPoint | None:
        """What a pod like this one should start from."""
        key = EngineKey.of(evidence.info)
        return None if key is None else self.book.recall(key, spec.sla, self._clock())

    def learn(self, spec: TuningSpec, evidence: Evidence, decision: Decision) -> None:
        """Take in what the decision teaches."""
        if self._store is None:
            return
        now = self._clock()
        if decision.failed_start is not None:
            self.book = self.book.avoid(decision.failed_start, now)
        found = to_remember(spec, evidence, decision, now)
        if found is not None:
            self.book = self.book.add(found)

    async def save(self) -> None:
        """Write what has changed, at most once a minute. Never raises."""
        async with self._one_at_a_time:
            now = self._clock()
            is_news = self._is_open and self.book != self._saved
            if self._store is None or not is_news or now - self._saved_at < _SAVE_SPACING_S:
                return
            self._saved_at = now
            try:
                # Another process may have led, or run beside us, since we last read.
                stored = await self._store.load()
                self.book = book = self.book.merged(stored, now)
                await self._store.save(book)
            except StoreError as problem:
                _log.warning("the memory cannot be written: %s", problem)
                return
            self._saved = book
