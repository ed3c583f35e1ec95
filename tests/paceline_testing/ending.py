"""Ends a process that a test has started: asked first, killed after a deadline."""

import subprocess
from typing import Any

_GRACE_S = 60.0


def end(process: "subprocess.Popen[Any]", *, grace_s: float = _GRACE_S) -> None:
    """Send SIGTERM, and SIGKILL to one that has not ended `grace_s` later."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
