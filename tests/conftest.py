"""Fixtures for every part, and one guard."""

import os
from importlib import import_module
from pathlib import Path

import pytest

pytest_plugins = ["local_cluster.fixtures"]

ROOT = Path(__file__).parents[1]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes that each take all cores are slower
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Without a GPU the kernels run in Triton's interpreter; this is read when triton is first imported.
# Torch is asked only where there may be one, for its import takes seconds.
if not (Path("/dev/nvidiactl").exists() and import_module("torch").cuda.is_available()):
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure() -> None:
    """Refuse to run where a folder of ours would hide the standard library's `operator`."""
    for folder in ("operator", "tests/operator"):
        if (ROOT / folder / "__init__.py").exists():
            msg = f"{folder}/__init__.py hides the standard library's `operator`: remove it"
            raise pytest.UsageError(msg)
