"""The tests of the kernels that need a GPU, as pytest runs them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.record import Figure

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 420.0


def measure(machine: Machine) -> Iterator[Figure]:
    """Count what failed; in a dry run, of the one file that the interpreter computes fastest."""
    if find_spec("pytest") is None:
        raise RuntimeError("pytest is not installed")
    wanted = ["tests/kernels/test_norm.py"] if machine.is_dry else ["tests/kernels", "-m", "gpu"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *wanted],
        cwd=_ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    counts = counted(run.stdout)
    if run.returncode not in {0, 1} or not counts:
        raise RuntimeError(f"pytest did not run: {(run.stdout + run.stderr)[-500:]}")
    failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    yield Figure(names.FAILED, failed, "wrong", f"{counts.get('passed', 0)} passed")


def counted(output: str) -> dict[str, int]:
    """How many passed, failed and so on, from pytest's last line."""
    last = output.strip().rpartition("\n")[2]
    return {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?|deselected)", last)
    }
