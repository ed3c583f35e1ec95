"""Runs Prometheus's rule checker for a test; without one the test is skipped, and fails in CI."""

import os
import subprocess
from pathlib import Path

import pytest

from local_cluster.errors import UnavailableError
from local_cluster.promtool import promtool


def run_promtool(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run it and return its exit status and output."""
    try:
        tool = promtool()
    except UnavailableError as lack:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(lack))
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
