"""Which adapter to load or unload next, from what is wanted and what the engine has. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from paceline_wire import LoadAdapter, UnloadAdapter

_FIRST_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 300.0

State = Literal["loaded", "loading", "refused"]
STATES: Final[tuple[State, ...]] = ("loaded", "loading", "refused")
Paths = Mapping[str, str]
"""Where each adapter comes from, by its name."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an adapter was not loaded, and when to try again: a slot or a hub may come back."""

    path: str
    message: str
    again_at: float
    delay_s: float

    @classmethod
    def after(cls, before: "Refusal | None", path: str, message: str, now: float) -> "Refusal":
        """Wait twice as long as after the refusal before this one."""
        again = before is not None and before.path == path
        delay_s = min(2 * before.delay_s, _LONGEST_RETRY_S) if before and again else _FIRST_RETRY_S
        return cls(path, message, now + delay_s, delay_s)


class AdapterState(msgspec.Struct, frozen=True):
    """The state of one wanted adapter."""

    name: str
    path: str
    state: State
    message: str = ""
    """Why it is refused."""


def next_change(
    wanted: Paths, present: Paths, refusals: Mapping[str, Refusal], now: float
) -> LoadAdapter | UnloadAdapter | None:
    """Choose one change; unwanted adapters go first, as that makes room for the others."""
    for name in present:
        if name not in wanted:
            return UnloadAdapter(call=0, name=name)
    for name, path in wanted.items():
        if present.get(name) != path and _is_due(refusals.get(name), path, now):
            return LoadAdapter(call=0, name=name, path=path, replaces=name in present)
    return None


def due_at(wanted: Paths, present: Paths, refusals: Mapping[str, Refusal]) -> float | None:
    """Return when a refused adapter is tried again; None where none is."""
    times = [
        refusal.again_at
        for name, refusal in refusals.items()
        if name in wanted and present.get(name) != wanted[name] == refusal.path
    ]
    return min(times, default=None)


def states(wanted: Paths, present: Paths, refusals: Mapping[str, Refusal]) -> list[AdapterState]:
    """Return the state of each wanted adapter."""
    found = []
    for name, path in wanted.items():
        refusal = refusals.get(name)
        if present.get(name) == path:
            found.append(AdapterState(name, path, "loaded"))
        elif refusal is not None and refusal.path == path:
            found.append(AdapterState(name, path, "refused", refusal.message))
        else:
            found.append(AdapterState(name, path, "loading"))
    return found


def _is_due(refusal: Refusal | None, path: str, now: float) -> bool:
    return refusal is None or refusal.path != path or now >= refusal.again_at
