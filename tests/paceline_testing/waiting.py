"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

_GENEROUS_S = 180.0


def wait_until(
    reached: Callable[[], object], *, within_s: float = _GENEROUS_S, every_s: float = 0.005
) -> None:
    """Return as soon as `reached()` is true; fail when it does not get so.

    A look that costs a process is taken less often.
    """
    end = time.monotonic() + within_s
    while not reached():
        if time.monotonic() > end:
            message = f"not reached within {within_s:g} s: {reached}"
            raise AssertionError(message)
        time.sleep(every_s)
