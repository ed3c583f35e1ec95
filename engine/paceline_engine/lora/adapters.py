"""What the engine asks of LoRA adapters, which come and go while it serves; free of torch."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """One adapter's place on the device."""

    slot: int
    """Where its weights lie."""
    salt: str
    """Keeps its prefix blocks apart from those of every other load, even of the same name."""
    path: str
    """Where it was loaded from, as it was asked for."""


class Adapters(Protocol):
    """Adapters by name. One that was unloaded serves the requests that have it to their end."""

    @property
    def names(self) -> list[str]:
        """Those that new requests may name, in the order in which they were loaded."""
        ...

    @property
    def paths(self) -> list[str]:
        """Where each of `names` was loaded from, as it was asked for."""
        ...

    def find(self, name: str) -> LoadedAdapter | None:
        """Return the adapter of this name; None where there is none."""
        ...

    def load(
        self, name: str, path: str, *, folder: Path, in_use: Collection[int], replaces: bool
    ) -> None:
        """Load the PEFT folder that `path` stands for; `in_use` are slots that requests still need.

        Raises AdapterRefused, and then leaves one that it was to replace as it is.
        """
        ...

    def unload(self, name: str) -> None:
        """Forget the name; raises AdapterRefused where there is none."""
        ...
