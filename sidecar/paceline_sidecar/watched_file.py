"""A small file that may be replaced while we run, as Kubernetes does with mounted Secrets."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

_LOOK_EVERY_S = 1.0

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """Reads a file again when it has changed; keeps the last value when it cannot be read.

    Of the text it keeps what `parse` makes of it and nothing else: a secret may stand there.
    """

    def __init__(
        self, path: Path, parse: Callable[[str], T], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._parse = parse
        self._clock = clock
        self._looked_at = -_LOOK_EVERY_S
        self._seen: tuple[int, int, int] | None = None
        self._value = parse("")

    def read(self) -> T:
        """Return the parsed file, at most a second old; `parse("")` until it was first readable."""
        now = self._clock()
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        return self._value

    def _look(self) -> None:
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if seen != self._seen:
                self._value = self._parse(self._path.read_text(encoding="utf-8"))
                self._seen = seen
        except (OSError, UnicodeDecodeError):
            return  # between the removal and the replacement the old text still holds
