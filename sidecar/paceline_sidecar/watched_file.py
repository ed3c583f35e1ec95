"""A small file that may be replaced while we run, as Kubernetes does with mounted Secrets."""

import time
from collections.abc import Callable
from pathlib import Path

_LOOK_EVERY_S = 1.0


class WatchedFile:
    """Reads the file again when it is another one; keeps the last text when it cannot be read."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = -_LOOK_EVERY_S
        self._seen: tuple[int, int, int] | None = None
        self._text = ""

    def text(self) -> str:
        """What the file holds, at most a second old; empty while it was never readable."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        return self._text

    def _look(self) -> None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                self._text = self._path.read_text(encoding="utf-8")
                self._seen = seen
        except (OSError, UnicodeDecodeError):
            return  # between the removal and the replacement the old text still holds
