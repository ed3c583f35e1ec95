"""What an engine loads before it serves. A request to a service without pods waits for it."""

import subprocess
import sys


def test_an_engine_starts_without_torchs_compiler() -> None:
    """It takes as long to import as torch itself, and nothing here compiles by it."""
    code = "import sys, paceline_engine.loading.load; print('torch._dynamo' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )

    assert done.stdout == "False\n"
