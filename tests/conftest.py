"""Fixtures for every part, and one guard."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes that each take all cores are slower
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_configure() -> None:
    """Refuse to run where a folder of ours would hide the standard library's `operator`."""
    for folder in ("operator", "tests/operator"):
        if (ROOT / folder / "__init__.py").exists():
            msg = f"{folder}/__init__.py hides the standard library's `operator`: remove it"
            raise pytest.UsageError(msg)
