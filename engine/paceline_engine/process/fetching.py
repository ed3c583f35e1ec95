"""Downloads LoRA adapters in threads beside the step loop, and calls back when one ends."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paceline_engine.errors import EngineError
from paceline_engine.hardware.placing import leave_core
from paceline_wire import LoadAdapter

_HUB = "hf://"


class Repositories(Protocol):
    """Where adapters are downloaded from."""

    def download(self, repository: str, revision: str | None) -> tuple[Path, str]:
        """Fetch a repository; its folder and its commit. Raises EngineError."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """One download that has ended."""

    path: str
    folder: Path | None
    """None where it failed, for the reason in `error`."""
    error: str = ""


def is_remote(path: str) -> bool:
    """Whether an adapter's path must be downloaded."""
    return path.startswith(_HUB)


def download(path: str, hub: Repositories) -> Path:
    """Fetch `hf://ORG/NAME@REVISION`, or find it in the cache. Raises EngineError."""
    repository, _, revision = path.removeprefix(_HUB).partition("@")
    folder, _ = hub.download(repository, revision or None)
    return folder


class Fetching:
    """The adapters that are being downloaded. Owned by the step loop's thread."""

    def __init__(self, fetch: Callable[[str], Path], done: Callable[[Fetched], None]) -> None:
        self._fetch = fetch
        self._done = done
        """Called in the thread of the download."""
        self._waiting: dict[str, LoadAdapter] = {}
        """By name: the last call that asked for it."""
        self._running: set[str] = set()

    def start(self, change: LoadAdapter) -> None:
        """Download the adapter's repository once, however often it is asked for meanwhile."""
        self._waiting[change.name] = change
        if change.path not in self._running:
            self._running.add(change.path)
            # A daemon: a hub that hangs must not keep a process that leaves.
            thread = threading.Thread(
                target=self._run, args=(change.path,), name="paceline-adapter", daemon=True
            )
            thread.start()

    def take(self, fetched: Fetched) -> list[LoadAdapter]:
        """Note that a download has ended; the calls that still wait for it."""
        self._running.discard(fetched.path)
        changes = [change for change in self._waiting.values() if change.path == fetched.path]
        for change in changes:
            del self._waiting[change.name]
        return changes

    def forget(self, name: str) -> None:
        """Drop the call that waits under this name: a later one replaces it."""
        self._waiting.pop(name, None)

    def _run(self, path: str) -> None:
        leave_core()
        try:
            self._done(Fetched(path, self._fetch(path)))
        except EngineError as error:
            self._done(Fetched(path, None, f"{error.reason}: {error.message}"))
        except Exception as error:  # noqa: BLE001 - every call is answered, whatever went wrong
            self._done(Fetched(path, None, f"{path}: {type(error).__name__}: {error}"))
