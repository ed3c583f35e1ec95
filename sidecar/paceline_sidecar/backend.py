"""The port to the engine: all that the sidecar asks of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from paceline_sidecar.errors import SidecarError
from paceline_wire import (
    AdaptersState,
    EngineTelemetry,
    LimitsState,
    LoadAdapter,
    Loading,
    ModelInfo,
    Output,
    ProfileSteps,
    SetLimits,
    StepProfile,
    StepTrace,
    Submit,
    UnloadAdapter,
)

Phase = Literal["absent", "loading", "failed", "ready", "stalled"]


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine as last heard of; replaced whole with every change."""

    phase: Phase = "absent"
    detail: str = "the engine has not answered yet"
    """For a person: what is missing while the phase is not `ready`."""
    loading: Loading | None = None
    """How far it is, while the phase is `loading`."""
    instance: str = ""
    model: ModelInfo | None = None
    limits: LimitsState | None = None
    adapters: tuple[str, ...] = ()
    """LoRA adapters that requests may name as their model."""
    adapter_paths: tuple[str, ...] = ()
    """Where each of them was loaded from."""
    profile: StepProfile | None = None
    """What its steps took before it served; None where nothing was measured."""
    heard_at: float = 0.0
    """CLOCK_MONOTONIC seconds of the last message."""


class Arrival(msgspec.Struct, frozen=True):
    """One output and when the sidecar received it."""

    at: float
    output: Output


Deliver = Callable[[Arrival | SidecarError], None]
"""Called from the event loop, once per output, and at most once with an error, last."""


class Listener(Protocol):
    """Hears, on the event loop, what the engine reports of itself."""

    def engine_changed(self, before: EngineView, after: EngineView) -> None:
        """Handle a new phase, instance or limits."""
        ...

    def telemetry_arrived(self, message: EngineTelemetry) -> None:
        """Handle a heartbeat, with the steps since the last one."""
        ...


class Backend(Protocol):
    """One engine, wherever it runs."""

    @property
    def view(self) -> EngineView:
        """The engine as last heard of."""
        ...

    def submit(self, message: Submit, deliver: Deliver) -> None:
        """Run one request; raises `Unavailable` when no engine can take it."""
        ...

    def abort(self, ids: list[str]) -> None:
        """Forget these requests; nothing more is delivered for them."""
        ...

    async def set_limits(self, change: SetLimits) -> LimitsState:
        """Change the live limits; `change.call` is filled in. Raises `Unavailable`."""
        ...

    async def change_adapters(self, change: LoadAdapter | UnloadAdapter) -> AdaptersState:
        """Load or unload a LoRA adapter; `change.call` is filled in. Raises `Unavailable`."""
        ...

    async def profile_steps(self, asked: ProfileSteps) -> StepTrace:
        """Record the next steps; `asked.call` is filled in. Raises `Unavailable`."""
        ...
