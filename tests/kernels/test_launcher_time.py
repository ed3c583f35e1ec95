"""What a launch costs the host is measured where there is no GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks/launcher_time.py"


def test_a_launcher_is_timed_up_to_the_driver() -> None:
    """In a process of its own: here, triton was imported as an interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    folders = (str(BENCHMARK.parents[1] / "tests"), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(folders)
    command = [sys.executable, str(BENCHMARK), "gate_mul"]

    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )

    assert run.returncode == 0, run.stderr
    assert re.fullmatch(r"gate_mul +\d+\.\d us a launch\n", run.stdout)
