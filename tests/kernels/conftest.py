"""Where the kernels run, and memory that betrays what they leave out."""

import os
from typing import Any

import pytest
import torch

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
_KNOWS_E4M3 = (8, 9)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none, and what needs a newer one."""
    if INTERPRETS:
        if item.get_closest_marker("gpu"):
            pytest.skip("needs a CUDA GPU")
    elif item.get_closest_marker("fp8") and torch.cuda.get_device_capability() < _KNOWS_E4M3:
        pytest.skip("needs a GPU of compute capability 8.9 or newer")


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
