"""What sidecars of the tests were told, and a look for it in every line that they log.

A test fails whose sidecars have logged a key, a token or a prompt (`tests/conftest.py`).
"""

import json
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import httpx

from paceline_sidecar.logs import QuietFormatter

_SHORTEST: Final = 12
"""Shorter texts stand in logs by chance."""
_LONGEST: Final = 200
_MAX_BODY_BYTES: Final = 64 * 1024
_told: deque[str] = deque(maxlen=5000)
_LOGGERS: Final = {"asyncio", "fastapi", "paceline_sidecar", "starlette", "uvicorn", "uvloop"}


def remember(*texts: str) -> None:
    """Look for these from now on."""
    _told.extend(text[:_LONGEST] for text in texts if len(text) >= _SHORTEST)


def remember_request(request: httpx.Request) -> None:
    """Look for its key and for every text of its body: a hook of the clients."""
    remember(request.headers.get("authorization", "").removeprefix("Bearer "))
    remember(request.headers.get("x-api-key", ""))
    if isinstance(request.stream, httpx.ByteStream):
        try:
            remember(*_texts(json.loads(request.read()[:_MAX_BODY_BYTES])))
        except (ValueError, RecursionError):
            return  # no body, or a bad one: it says nothing that can be told from a log's own words


def leaks(log: str) -> list[str]:
    """Return what a log tells of it."""
    return sorted({text for text in _told if text in log})


class KeptLog(logging.Handler):
    """What the sidecars of this process have logged, written as in production."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(QuietFormatter())
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line, where a sidecar wrote it."""
        if record.name.partition(".")[0] in _LOGGERS:
            self._lines.append(self.format(record))

    def take(self) -> str:
        """Return what came since the last call."""
        lines, self._lines = self._lines, []
        return "\n".join(lines)


KEPT: Final = KeptLog()


def listen() -> None:
    """Hear all that a container would write; a second call changes nothing."""
    logging.getLogger().addHandler(KEPT)
    for name in ("paceline_sidecar", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO)


def require_silence() -> None:
    """Raise AssertionError where the lines since the last call tell anything of it."""
    found = leaks(KEPT.take())
    assert not found, f"a sidecar's log tells {found}"


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)
