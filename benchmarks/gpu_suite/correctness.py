"""The tests that need a GPU or take whichever there is, as pytest runs them, file by file."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path

from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.record import Absent, Broken, Figure, Found

ROOT = Path(__file__).parents[2]
_DRY = "tests/kernels/test_norm.py"
"""What the interpreter computes fastest."""
_FOLDERS = {
    "tests/kernels": ("device: str", "mark.gpu", "DTYPES"),
    "tests/engine": ("mark.gpu",),
}
"""Markers in a file whose tests want a GPU: the others may import what is not installed."""
_TIMEOUT_S = 260.0
_MOST_AT_A_TIME = 8
"""They compile most of their time, and each has a context of some hundred megabytes on the GPU."""
_PROCESSES_A_FILE = 3
"""They share the tests of one file where pytest-xdist is installed: some compile for minutes."""
# The project's own settings name plugins that these tests do not need.
OPTIONS = (
    *("-c", os.devnull, "--rootdir", str(ROOT), "--import-mode=importlib"),
    *("-p", "no:cacheprovider", "-p", "gpu_suite.on_device", "-o", "markers=gpu: needs a CUDA GPU"),
)
_NOTHING_SELECTED = 5


def measure(machine: Machine) -> Iterator[Found]:
    """Count what failed; in a dry run, of one file."""
    if find_spec("pytest") is None:
        yield Absent(names.FAILED, "pytest is not installed on this machine")
        return
    files = [_DRY] if machine.is_dry else files_on_device()
    until = time.monotonic() + _TIMEOUT_S
    counts: Counter[str] = Counter()
    at_a_time = min(_MOST_AT_A_TIME, os.cpu_count() or 1)
    with ThreadPoolExecutor(at_a_time) as pool:
        left = [file for file in files if names.tests_of(file) not in machine.passed]
        runs = {pool.submit(_run, file, until, machine): file for file in left}
        for run in as_completed(runs):
            try:
                found = run.result()
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                yield Broken(names.tests_of(runs[run]), str(error)[-500:])
                continue
            counts += found
            name = names.tests_of(runs[run])
            if found["failed"] + found["error"]:
                yield Broken(name, _listed(found))
            else:
                yield Figure(name, found["passed"], "passed", _listed(found))
    failed = counts["failed"] + counts["error"] + len(machine.broken)
    if left and not counts["passed"]:
        yield Broken(names.FAILED, "no test has run")
    else:
        earlier = len(files) - len(left)
        note = (
            f"{_listed(counts)}; {earlier} files by an earlier run" if earlier else _listed(counts)
        )
        yield Figure(names.FAILED, failed, "wrong", note)


def _run(file: str, until: float, machine: Machine) -> Counter[str]:
    """Run one file. Raises RuntimeError where pytest cannot, and TimeoutExpired."""
    # Said, not looked for: a machine whose GPU has no device file would interpret, and skip.
    environment = {**os.environ, "TRITON_INTERPRET": "1" if machine.is_dry else "0"}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rfE",
            *OPTIONS,
            *_spread(machine),
            *_alone(file),
            file,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=max(until - time.monotonic(), 1.0),
        check=False,
    )
    counts = counted(run.stdout)
    if run.returncode == _NOTHING_SELECTED:
        return counts
    if run.returncode not in {0, 1} or not counts:
        raise RuntimeError(f"pytest did not run: {(run.stdout + run.stderr)[-400:]}")
    if run.returncode:
        print(run.stdout[-8000:], flush=True)
    return counts


def _spread(machine: Machine) -> tuple[str, ...]:
    """Have several processes share a file's tests, where pytest can."""
    if machine.is_dry or find_spec("xdist") is None:
        return ()
    return ("-n", str(_PROCESSES_A_FILE))


def _alone(file: str) -> tuple[str, str]:
    """Leave out what is above its folder: fixtures of clusters, with packages of their own."""
    return ("--confcutdir", str(ROOT.joinpath(*Path(file).parts[:2])))


def files_on_device() -> list[str]:
    """Files with tests that want a GPU, but those that look at the suite itself; largest first."""
    files = [
        file
        for folder, words in _FOLDERS.items()
        for file in sorted((ROOT / folder).rglob("test_*.py"))
        if any(word in file.read_text() for word in words) and "subprocess" not in file.read_text()
    ]
    return [
        str(file.relative_to(ROOT)) for file in sorted(files, key=lambda file: -file.stat().st_size)
    ]


def counted(output: str) -> Counter[str]:
    """How many passed, failed and so on, from pytest's last line."""
    last = output.strip().rpartition("\n")[2]
    found = re.findall(r"(\d+) (passed|failed|skipped|error|deselected)", last)
    return Counter({word: int(number) for number, word in found})


def _listed(counts: Counter[str]) -> str:
    kinds = ("passed", "failed", "error", "skipped")
    return ", ".join(f"{counts[kind]} {kind}" for kind in kinds if counts[kind])
