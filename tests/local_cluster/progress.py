"""One line of progress at a time, on stderr, past pytest's capture."""

import os
import sys
import time

_started_at = time.monotonic()


def say(line: str) -> None:
    """Tell a waiting person what is going on."""
    seconds = time.monotonic() - _started_at
    os.write(
        sys.__stderr__.fileno() if sys.__stderr__ else 2,
        f"[cluster {seconds:5.0f} s] {line}\n".encode(),
    )
