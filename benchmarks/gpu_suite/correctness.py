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
_CASES = "from paceline_testing.kernel_cases import"
"""The types among them have one that only a GPU computes rightly."""
_TIMEOUT_S = 420.0
# The project's own settings name plugins that these tests do not need.
_OPTIONS = (
    *("-c", os.devnull, "--rootdir", str(_ROOT), "--import-mode=importlib"),
    *("-p", "no:cacheprovider", "-o", "markers=gpu: needs a CUDA GPU"),
)


def measure(machine: Machine) -> Iterator[Figure]:
    """Count what failed; in a dry run, of the one file that the interpreter computes fastest."""
    if find_spec("pytest") is None:
        raise RuntimeError("pytest is not installed")
    wanted = ["tests/kernels/test_norm.py"] if machine.is_dry else [*marked(), "-m", "gpu"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_OPTIONS, *wanted],
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


def marked() -> list[str]:
    """Files with tests that need a GPU: the others may import what is not installed."""
    files = sorted((_ROOT / "tests/kernels").glob("test_*.py"))
    return [str(file) for file in files if _CASES in file.read_text()]


def counted(output: str) -> dict[str, int]:
    """How many passed, failed and so on, from pytest's last line."""
    last = output.strip().rpartition("\n")[2]
    return {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?|deselected)", last)
    }
