"""A process that ends by itself in time, or is ended with all that it started."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress


def run(command: Sequence[str], timeout_s: float) -> str:
    """Run it; why it did not end as it should, empty where it did."""
    # Found where ours were, wherever it changes to.
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100 - "" is here
    # Not a session of its own: whoever ends ours, by its session, is to end it too.
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, process_group=0)
    try:
        status = _wait(process, timeout_s)
    except subprocess.TimeoutExpired:
        return f"it was stopped after {timeout_s:.0f} s"
    finally:
        _end_all(process)
    return f"its process ended with status {status}" if status else ""


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float) -> int:
    return process.wait(max(timeout_s, 1.0))


def _end_all(process: "subprocess.Popen[bytes]") -> None:
    """Kill what is left of its group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
