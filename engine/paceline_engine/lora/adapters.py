"""Adapters (Protocol): what the engine asks of LoRA adapters that come and go while it serves."""

from collections.abc import Collection
from pathlib import Path
from typing import Protocol


class AdapterRefused(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """An adapter cannot be loaded or unloaded, in a sentence for whoever asked for it."""


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

    def find(self, name: str) -> "AdapterKey | None":
        """Where the adapter of this name lies; None where there is none."""
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


class AdapterKey(Protocol):
    """One loaded adapter."""

    @property
    def slot(self) -> int:
        """Where its weights lie."""
        ...

    @property
    def salt(self) -> str:
        """Keeps its prefix blocks apart from those of every other load, even of the same name."""
        ...
