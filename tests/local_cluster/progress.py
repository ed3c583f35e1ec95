"""One line of progress at a time."""

import sys
import time

_started_at = time.monotonic()


def say(line: str) -> None:
    """Print one line about what is going on."""
    print(  # noqa: T201 - the terminal is where a person waits
        f"[cluster {time.monotonic() - _started_at:5.0f} s] {line}", file=sys.stderr, flush=True
    )
