"""Makes a process slow: the kernel stops it for a share of each fiftieth of a second."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PERIOD_S: Final = 0.02


@contextmanager
def slowed(pid: int, *, stopped_share: float) -> Iterator[None]:
    """Let it run for the rest of each period only; it runs as before when the block ends."""
    is_over = threading.Event()

    def keep_slow() -> None:
        while not is_over.is_set():
            os.kill(pid, signal.SIGSTOP)
            is_over.wait(_PERIOD_S * stopped_share)
            os.kill(pid, signal.SIGCONT)
            is_over.wait(_PERIOD_S * (1 - stopped_share))

    thread = threading.Thread(target=keep_slow, name="slow", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
