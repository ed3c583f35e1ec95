"""Where the kernels run, and memory that betrays what they leave out."""

import os
from typing import Any

import pytest
import torch

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if INTERPRETS and item.get_closest_marker("gpu"):
        pytest.skip("needs a CUDA GPU")


@pytest.fixture
def device() -> str:
    """The GPU where there is one, else the CPU with Triton's interpreter."""
    return "cpu" if INTERPRETS else "cuda"


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand out NaN as fresh memory, so that a kernel that skips an element fails its test."""
    for name in ("empty", "empty_like"):
        fresh = getattr(torch, name)

        def poisoned(*args: Any, fresh: Any = fresh, **kwargs: Any) -> torch.Tensor:
            memory: torch.Tensor = fresh(*args, **kwargs)
            return memory.fill_(torch.nan) if memory.is_floating_point() else memory

        monkeypatch.setattr(torch, name, poisoned)
