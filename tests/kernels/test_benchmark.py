import json
import subprocess
import sys
from pathlib import Path

import pytest

import paceline_kernels

BENCHMARK = Path(__file__).parents[2] / "benchmarks/kernel_speed.py"


def run_benchmark(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, str(BENCHMARK), *options],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_dry_run_checks_every_kernel_and_times_none(tmp_path: Path) -> None:
    """A time from the interpreter would say nothing, and could be taken for one of a GPU."""
    report = tmp_path / "kernels.json"

    run = run_benchmark("--dry", "--json", str(report))

    assert run.returncode == 0, run.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    # The norm without a residual is the same kernel; a plan is a step's, not a layer's.
    others = {"rms_norm", "plan_decode_attention"}
    assert {one["kernel"] for one in found["figures"]} == {*paceline_kernels.__all__} - others
    assert all(one["time_us"] is None for one in found["figures"])
    assert found["ceiling"] is None


def test_without_a_gpu_it_says_so(device: str) -> None:
    """One sentence, not a traceback."""
    if device == "cuda":
        pytest.skip("this machine has a GPU")

    run = run_benchmark()

    assert run.returncode == 2
    assert run.stderr == "This times kernels on a GPU, and torch sees none. Try --dry.\n"
