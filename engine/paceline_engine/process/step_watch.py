"""StepWatch: a thread that notices a step that never returns, and then ends the process.

A device that hangs raises nothing, and the heartbeat goes on beside it: without this the sidecar
would take requests for ever that nobody answers. When the process ends, the sidecar answers 503 at
once, and the kubelet (or `paceline up`) starts another engine.

The thread cannot run where the step holds Python's lock while it hangs. So it keeps resetting a
timer of `faulthandler`, which needs no lock: it goes off once nobody resets it.
"""

import faulthandler
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

STDERR = 2
"""The descriptor: writing to it needs no lock of Python's."""
_LOOKS = 20
"""Per timeout: how late a hang may be seen, a twentieth of the timeout."""
_LOOK_EVERY_S = 1.0
_MARGIN = 1.25
"""The timer without a lock goes off after the thread, which can report more."""


@dataclass(slots=True)
class StepTimes:
    """When the step that is under way began. Written by the step loop, read by the thread."""

    began_at: float | None = None

    def hung_s(self, now: float, timeout_s: float) -> float | None:
        """How long the step has taken, if that is longer than it may; None if all is well."""
        began_at = self.began_at  # read once: the step may end meanwhile
        if began_at is None or now - began_at < timeout_s:
            return None
        return now - began_at


class StepWatch:
    """Calls `hung`, once and from a thread of its own, when a step takes longer than it may."""

    def __init__(
        self,
        timeout_s: float,
        hung: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch nothing with a timeout of 0."""
        self.times = StepTimes()
        self._timeout_s = timeout_s
        self._hung = hung
        self._clock = clock
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from now on."""
        if self._timeout_s > 0:
            self._thread = threading.Thread(target=self._watch, name="paceline-watch", daemon=True)
            self._thread.start()

    def __enter__(self) -> None:
        """Note that a step begins."""
        self.times.began_at = self._clock()

    def __exit__(self, *_: object) -> None:
        """Note that it has returned."""
        self.times.began_at = None

    def close(self) -> None:
        """Watch no longer."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        every_s = min(_LOOK_EVERY_S, self._timeout_s / _LOOKS)
        while True:
            faulthandler.dump_traceback_later(
                _MARGIN * self._timeout_s + every_s, exit=True, file=STDERR
            )
            if self._is_over.wait(every_s):
                return
            hung_s = self.times.hung_s(self._clock(), self._timeout_s)
            if hung_s is not None:
                self._hung(hung_s)
                return
