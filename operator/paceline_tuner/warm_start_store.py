"""LiveWarmStart: the warm start while the tuner runs, and when it is read, written and extended."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Protocol

from paceline_tuner.decision import Decision
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start import StartingPoint, WarmStart
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry
from paceline_tuner.window import Evidence

_SAVE_SPACING_S = 60.0
_LOAD_SPACING_S = 10.0
_LOAD_WITHIN_S = 5.0
"""The longest that a round waits for the store; then pods start without its contents."""
_SETTLED = (0.85, 1.2)
"""Bounds of `fast` and the slowdown within which the step times are typical of the engine."""

_log = logging.getLogger(__name__)


class StoreError(Exception):
    """The warm start could not be read or written now."""


class WarmStartStore(Protocol):
    """Where the warm start outlives its process."""

    async def load(self) -> WarmStart:
        """Read it; empty where there is none. Raises StoreError."""
        ...

    async def save(self, warm_start: WarmStart) -> None:
        """Write it whole. Raises StoreError."""
        ...


class LiveWarmStart:
    """One warm start for all services. Without a store it stays empty and is never written."""

    def __init__(self, store: WarmStartStore | None, clock: Callable[[], float]) -> None:
        """Keep the warm start in `store`; `clock` gives Unix seconds."""
        self.warm_start = WarmStart()
        self._store = store
        self._clock = clock
        self._is_open = False
        self._tried_at = -math.inf
        self._saved: WarmStart | None = None
        self._saved_at = -math.inf
        self._opening = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read what was stored before, if that has not succeeded yet. Never raises."""
        if self._store is None or self._is_open:
            return
        async with self._opening:
            now = self._clock()
            if self._is_open or now - self._tried_at < _LOAD_SPACING_S:
                return
            self._tried_at = now
            try:
                async with asyncio.timeout(_LOAD_WITHIN_S):
                    stored = await self._store.load()
            except (StoreError, TimeoutError) as problem:
                _log.warning("the warm start cannot be read: %r", problem)
                return
            self.warm_start = self.warm_start.merged(stored, now)
            self._saved, self._is_open = stored, True

    def hear(self, others: WarmStart) -> None:
        """Take in what was stored by others meanwhile."""
        now = self._clock()
        self.warm_start = self.warm_start.merged(others, now)
        if self._saved is not None:
            self._saved = self._saved.merged(others, now)

    def starting_point(self, spec: TuningSpec, evidence: Evidence) -> StartingPoint | None:
        """Find what a pod like this one should start from."""
        key = EngineKey.of(evidence.info)
        return None if key is None else self.warm_start.starting_point(key, spec.sla, self._clock())

    def learn(self, spec: TuningSpec, evidence: Evidence, decision: Decision) -> None:
        """Take in what the decision teaches; most decisions teach nothing."""
        if self._store is None:
            return
        now = self._clock()
        if decision.failed_start is not None:
            self.warm_start = self.warm_start.avoid(decision.failed_start, now)
        found = learned_entry(spec, evidence, decision, now)
        if found is not None:
            self.warm_start = self.warm_start.add(found)

    def save_soon(self) -> None:
        """Begin to write what has changed, at most once a minute; no round waits for its end."""
        now = self._clock()
        is_news = self._is_open and self.warm_start != self._saved
        is_busy = self._saving is not None and not self._saving.done()
        if self._store is None or is_busy or not is_news or now - self._saved_at < _SAVE_SPACING_S:
            return
        self._saved_at = now
        self._saving = asyncio.create_task(self._save(self._store, now), name="save warm start")

    async def _save(self, store: WarmStartStore, now: float) -> None:
        try:
            # Another process may have led, or run beside us, since we last read.
            stored = await store.load()
            self.warm_start = merged = self.warm_start.merged(stored, now)
            await store.save(merged)
        except StoreError as problem:
            _log.warning("the warm start cannot be written: %s", problem)
            return
        self._saved = merged


def learned_entry(
    spec: TuningSpec, evidence: Evidence, decision: Decision, now: float
) -> WarmStartEntry | None:
    """Take what is worth keeping: limits of our own that hold the SLA, under a trusted model.

    `now` is Unix seconds.
    """
    key, limits, model = EngineKey.of(evidence.info), evidence.limits, evidence.model
    state = decision.state
    is_ours = spec.mode == "Auto" and not spec.paused and not limits.lease_lost
    is_certified = state.audit.is_certified(spec.sla.objective)
    if (
        key is None
        or not is_ours
        or not decision.is_trusted
        or decision.chosen != decision.current
        or decision.obstacle
        or not (is_certified or decision.is_proven)
        or not _SETTLED[0] <= model.fast <= _SETTLED[1]
        or decision.is_slow
        or not _SETTLED[0] <= state.slowdown.ratio <= _SETTLED[1]
    ):
        return None
    held = TunedLimits.of(limits.requested)
    found = WarmStartEntry(
        key=key,
        sla=spec.sla,
        theta=model.theta,
        knee=model.knee,
        correction=model.correction,
        bin_tokens=model.bin_tokens,
        batch_size=held.batch_size,
        token_budget=held.token_budget,
        step_target_ms=held.step_target_ms,
        at=now,
        is_certified=is_certified,
    )
    return found if found.is_sound else None
