"""The garbage collector, kept out of imports and of the step loop.

After start everything that will live as long as the process is frozen, out of the collector's
sight. While steps run only the young generations are collected; the whole heap is when the engine
has nothing to do. What the pauses cost is measured.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NEVER = 1 << 30
_YOUNG_THRESHOLD = 20_000
"""Allocations before a young collection: a step of 1,024 requests alone makes thousands."""


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Collect no garbage in the block, and freeze what it leaves: for imports, which stay.

    Importing torch and the engine makes 325,000 objects that are tracked, and to look through them
    again and again takes an eighth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class QuietCollector:
    """Takes over the collector of this process; `close` gives it back."""

    def __init__(self) -> None:
        self._thresholds = gc.get_threshold()
        self._started: float | None = None
        self._num_steps = 0
        """Steps that had run at the last full collection."""
        self.pause_ms = 0.0
        """Total of all pauses since start, the idle ones left out."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(max(self._thresholds[0], _YOUNG_THRESHOLD), self._thresholds[1], _NEVER)
        gc.callbacks.append(self._measure)

    def idle(self, num_steps: int) -> None:
        """Collect the whole heap, once after work: `num_steps` have run since start."""
        if num_steps > self._num_steps:
            self._num_steps = num_steps
            before = self.pause_ms
            gc.collect()
            self.pause_ms = before  # no step waited for it

    def close(self) -> None:
        """Leave the collector as it was found."""
        gc.callbacks.remove(self._measure)
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _measure(self, phase: str, _info: dict[str, Any]) -> None:
        now = time.perf_counter()
        if phase == "start":
            self._started = now
        elif self._started is not None:
            self.pause_ms += (now - self._started) * 1e3
            self._started = None
