"""Keeps the engine's LoRA adapters as the operator wants them, over restarts of the engine too."""

import asyncio
from collections.abc import Callable

from paceline_sidecar.adapter_plan import AdapterState, Paths, Refusal, due_at, next_change, states
from paceline_sidecar.backend import Backend, EngineView
from paceline_sidecar.errors import Unavailable
from paceline_wire import EngineTelemetry, LoadAdapter


class AdapterReconciler:
    """Level-triggered: each look compares what is wanted with what the engine says it has."""

    def __init__(
        self,
        backend: Backend,
        *,
        own_name: Callable[[], str],
        clock: Callable[[], float],
        again_after_s: float = 1.0,
    ) -> None:
        """`own_name` gives the name of the model itself, which no adapter may take."""
        self._backend = backend
        self._own_name = own_name
        self._clock = clock
        self._again_after_s = again_after_s
        self._wanted: Paths | None = None
        """None until somebody has said what is wanted: adapters loaded by hand are left alone."""
        self._refusals: dict[str, Refusal] = {}
        self._changed = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def want(self, wanted: Paths) -> None:
        """Say which adapters the engine is to have from now on."""
        self._wanted = dict(wanted)
        self._refusals = {name: kept for name, kept in self._refusals.items() if name in wanted}
        self._changed.set()

    def states(self) -> list[AdapterState]:
        """Return the state of each wanted adapter."""
        return states(self._wanted or {}, self._present(), self._refusals)

    async def fill(self) -> None:
        """Give a new engine its adapters, each loaded or refused; raises `Unavailable`."""
        self._refusals = {}
        while not await self._settle():
            if self._backend.view.phase != "ready":
                raise Unavailable("engine_lost", "The engine went away while it loaded adapters.")
            # Where the engine has just died, the event loop needs a turn to notice.
            await asyncio.sleep(self._again_after_s)

    async def run(self) -> None:
        """Follow every change of what is wanted, and try again what was refused, for ever."""
        while True:
            self._changed.clear()
            is_settled = self._backend.view.phase != "ready" or await self._settle()
            timeout_s = self._until_due_s() if is_settled else self._again_after_s
            try:
                await asyncio.wait_for(self._changed.wait(), timeout_s)
            except TimeoutError:
                continue

    def engine_changed(self, before: EngineView, after: EngineView) -> None:
        """See `Listener`."""
        if before.phase != after.phase:
            self._changed.set()

    def telemetry_arrived(self, message: EngineTelemetry) -> None:
        """See `Listener`."""

    async def _settle(self) -> bool:
        """Change until nothing is left to change; False where the engine did not answer."""
        async with self._one_at_a_time:
            while (wanted := self._wanted) is not None:
                change = next_change(wanted, self._present(), self._refusals, self._clock())
                if change is None:
                    break
                if change.name == self._own_name() and isinstance(change, LoadAdapter):
                    self._refuse(change, f"{change.name!r} is the name of the model itself.")
                    continue
                try:
                    answer = await self._backend.change_adapters(change)
                except Unavailable:
                    return False  # the engine went away or still downloads: asked again later
                if answer.error is not None:
                    if not isinstance(change, LoadAdapter):
                        break  # somebody else has unloaded it, and the view shows that by now
                    self._refuse(change, answer.error)
        return True

    def _refuse(self, change: LoadAdapter, message: str) -> None:
        before = self._refusals.get(change.name)
        self._refusals[change.name] = Refusal.after(before, change.path, message, self._clock())

    def _present(self) -> Paths:
        view = self._backend.view
        return dict(zip(view.adapters, view.adapter_paths, strict=False))

    def _until_due_s(self) -> float | None:
        due = due_at(self._wanted or {}, self._present(), self._refusals)
        return None if due is None else max(0.0, due - self._clock())
