"""The loop of the thread that owns the device: take messages, step, send outputs."""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import assert_never

from paceline_engine.engine.engine import Engine
from paceline_engine.grammar.grammar import CompiledGrammar, GrammarCompiler, Grammars
from paceline_engine.process.collector import QuietCollector
from paceline_engine.process.fetching import Fetched, Fetching, is_remote
from paceline_engine.process.ipc import HEARTBEAT_S, FromLink, Link, LinkBroken, PeerLost, Stop
from paceline_engine.process.step_profile import StepProfiler
from paceline_wire import (
    Abort,
    AdaptersState,
    EngineTelemetry,
    LimitsState,
    LoadAdapter,
    ModelInfo,
    Output,
    Outputs,
    ProfileSteps,
    Ready,
    SetLimits,
    StepProfile,
    Submit,
    UnloadAdapter,
)

_GATHERING_S = 0.002
"""Seconds between checks whether a batch that waits for more requests is due."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What `Ready` says of the engine, and how long it may take to stop."""

    instance: str
    model: ModelInfo
    drain_s: float
    """Seconds for accepted requests to finish after the first `Stop`."""
    profile: StepProfile | None = None


class Worker:
    """Runs one engine behind one link until it is stopped."""

    def __init__(
        self,
        engine: Engine,
        link: Link,
        settings: WorkerSettings,
        *,
        grammars: Grammars,
        watch: AbstractContextManager[None],
        fetch: Callable[[str], Path],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._compiler = GrammarCompiler(grammars, done=link.inbox.put)
        self._fetching = Fetching(fetch, done=link.inbox.put)
        self._profiler = StepProfiler(link.send, clock=clock)
        self._link = link
        self._settings = settings
        self._watch = watch
        self._clock = clock
        self._collector = QuietCollector()
        self._telemetry_at = clock()
        self._drain_until: float | None = None

    def run(self) -> None:
        """Serve until stopped, and until what was accepted by then is answered."""
        self._link.greet(self._greeting())
        try:
            while not self._is_done():
                self._receive()
                self._hold_lease()
                outputs = self._step()
                if outputs:
                    self._link.send(Outputs(at=self._clock(), outputs=outputs))
                self._report()
        finally:
            self._compiler.close()
            self._collector.close()

    def _step(self) -> list[Output]:
        if self._profiler.is_recording:
            return self._profiler.run(self._watched_step, self._num_steps)
        return self._watched_step()

    def _watched_step(self) -> list[Output]:
        with self._watch:
            return self._engine.step()

    def _num_steps(self) -> int:
        return self._engine.counters.steps

    def _is_done(self) -> bool:
        if self._drain_until is None:
            return False
        is_idle = self._engine.is_idle and not len(self._compiler)
        return is_idle or self._clock() >= self._drain_until

    def _receive(self) -> None:
        """Take every message that has come; wait for one when there is nothing to run."""
        if self._engine.is_idle:
            self._collector.idle(self._engine.counters.steps)
            if not self._take(self._idle_s()):
                return
        elif self._engine.is_gathering:
            self._take(_GATHERING_S)
        while self._take(0.0):
            pass

    def _take(self, timeout_s: float) -> bool:
        try:
            message = (
                self._link.inbox.get(timeout=timeout_s)
                if timeout_s > 0
                else self._link.inbox.get_nowait()
            )
        except Empty:
            return False
        self._handle(message)
        return True

    def _handle(self, message: FromLink) -> None:
        match message:
            case Submit() | CompiledGrammar() | Abort():
                self._handle_request(message)
            case SetLimits():
                self._answer_limits(self._engine.set_limits(message))
            case LoadAdapter() | UnloadAdapter():
                self._change_adapters(message)
            case ProfileSteps():
                self._profiler.start(message)
            case Fetched():
                self._take_fetched(message)
            case PeerLost():
                self._compiler.forget_all()
                self._engine.abort_all()
            case LinkBroken():
                raise RuntimeError("the socket to the sidecar is broken")
            case Stop():
                self._stop()
            case _:
                assert_never(message)

    def _handle_request(self, message: Submit | CompiledGrammar | Abort) -> None:
        match message:
            case Submit():
                self._submit(message)
            case CompiledGrammar():
                self._take_compiled(message)
            case Abort():
                self._compiler.forget(message.ids)
                self._engine.abort(message.ids)

    def _submit(self, submit: Submit) -> None:
        if submit.grammar is None:
            self._engine.submit(submit)
        else:
            self._compiler.start(submit)

    def _take_compiled(self, compiled: CompiledGrammar) -> None:
        if not self._compiler.take(compiled):
            return
        if compiled.constraint is None:
            self._engine.refuse(compiled.submit.id, compiled.error)
        else:
            self._engine.submit(compiled.submit, compiled.constraint)

    def _change_adapters(self, change: LoadAdapter | UnloadAdapter) -> None:
        if isinstance(change, LoadAdapter) and is_remote(change.path):
            self._fetching.start(change)
            return
        self._fetching.forget(change.name)
        self._answer_adapters(self._engine.change_adapters(change))

    def _take_fetched(self, fetched: Fetched) -> None:
        """Load the adapter for every call that still waits for it, or say why it cannot be had."""
        for change in self._fetching.take(fetched):
            if fetched.folder is None:
                self._answer_adapters(self._engine.adapters_state(change.call, fetched.error))
            else:
                self._answer_adapters(self._engine.change_adapters(change, fetched.folder))

    def _answer_adapters(self, state: AdaptersState) -> None:
        self._link.send(state)
        self._link.renew_greeting(self._greeting())

    def _stop(self) -> None:
        is_first = self._drain_until is None
        self._drain_until = self._clock() + (self._settings.drain_s if is_first else 0.0)
        _log.info("stopping%s", "" if is_first else " at once")

    def _hold_lease(self) -> None:
        lost = self._engine.expire_lease()
        if lost is not None:
            _log.warning("the lease of the limits has run out")
            self._answer_limits(lost)

    def _answer_limits(self, state: LimitsState) -> None:
        self._link.send(state)
        self._link.renew_greeting(self._greeting())

    def _greeting(self) -> Ready:
        adapters = self._engine.adapters_state()
        return Ready(
            instance=self._settings.instance,
            model=self._settings.model,
            limits=self._engine.limits_state(),
            adapters=adapters.adapters,
            adapter_paths=adapters.paths,
            profile=self._settings.profile,
        )

    def _idle_s(self) -> float:
        """Seconds until something is due even if no message comes."""
        due = self._telemetry_at
        if self._engine.control.lease_expires_at is not None:
            due = min(due, self._engine.control.lease_expires_at)
        return max(due - self._clock(), 0.0)

    def _report(self) -> None:
        now = self._clock()
        if now < self._telemetry_at:
            return
        self._telemetry_at = now + HEARTBEAT_S
        self._link.send(
            EngineTelemetry(
                at=now,
                load=self._engine.load(gc_pause_ms=self._collector.pause_ms),
                model=self._engine.pacer.info(),
                steps=self._engine.log.take(),
            )
        )
