"""Measures the host's time for a launch: our checks, and Triton's work before the driver's.

`PYTHONPATH=benchmarks:tests python benchmarks/launcher_time.py` needs no GPU: kernels are compiled
for 9.0, and a launch ends where the driver would be called. What the driver itself takes, some
microseconds, is not in it. Processor time, the median of several rounds.
"""

import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel

from paceline_testing.launches import SHAPES, Launches

ROWS = 64
_CALLS, _ROUNDS = 200, 7
_SHAPE = next(shape for shape in SHAPES if shape.name == "llama-3.1-8b")
OF_A_LAYER = ("rms_norm", "rope_and_store_kv", "decode_attention", "prefill_attention", "gate_mul")


class Driver:
    """As much of Triton's driver as a launch asks for."""

    def get_current_device(self) -> int:
        """Return the first."""
        return 0

    def get_current_stream(self, _device: int) -> int:
        """Return the default one."""
        return 0

    def get_current_target(self) -> GPUTarget:
        """Return what is compiled for."""
        return GPUTarget("cuda", 90, 32)


class Counter:
    """Stands where a kernel is handed to the driver."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, *_: object) -> None:
        """Count, and launch nothing."""
        self.launches += 1


def costs(names: tuple[str, ...] = OF_A_LAYER) -> dict[str, float]:
    """Return the microseconds that each launch of these takes the host.

    No memory is cleared: a device would do that by itself.
    """
    driver: Any = Driver()
    triton.runtime.driver.set_active(driver)
    counter = Counter()

    def loaded(kernel: Any) -> None:
        kernel.module, kernel.function = 1, 1
        kernel._run = counter  # noqa: SLF001 - where Triton keeps the driver's launcher

    with (
        mock.patch.object(CompiledKernel, "_init_handles", loaded),
        mock.patch.object(torch, "zeros", _made_once()),
        mock.patch.object(torch, "zeros_like", torch.empty_like),
        torch.inference_mode(),
    ):
        return {name: _of(getattr(Launches(_SHAPE, rows=ROWS), name), counter) for name in names}


def _made_once() -> Callable[..., torch.Tensor]:
    made: dict[object, torch.Tensor] = {}
    zeros = torch.zeros

    def once(*sizes: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        key = (sizes, dtype)
        if key not in made:
            made[key] = zeros(*sizes, dtype=dtype)
        return made[key]

    return once


def _of(launcher: Callable[[], None], counter: Counter) -> float:
    launcher()  # compiles
    counter.launches = 0
    rounds = [_timed(launcher) for _ in range(_ROUNDS)]
    return 1e6 * median(rounds) / (counter.launches / _ROUNDS)


def _timed(launcher: Callable[[], None]) -> float:
    started = time.process_time()
    for _ in range(_CALLS):
        launcher()
    return time.process_time() - started


def main() -> None:
    """Print a line a launcher; some may be named."""
    torch.set_num_threads(1)
    for name, each in costs(tuple(sys.argv[1:]) or OF_A_LAYER).items():
        print(f"{name:20} {each:6.1f} us a launch")


if __name__ == "__main__":
    main()
