"""The device that is measured, or in a dry run the CPU in its place."""

import gc
import platform
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from gpu_suite import names

FP8_CAPABILITY = (8, 9)


class DeviceLostError(Exception):
    """After an illegal access, say, every call of this process fails: another must go on."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What kernels and engines run on."""

    is_dry: bool
    passed: frozenset[str] = frozenset()
    """What an earlier try has figures of, or broke at: it is left out."""
    broken: frozenset[str] = frozenset()
    """Those of `passed` that it broke at."""
    models: frozenset[str] = frozenset(names.MODELS)
    """Those that are measured; the others keep what an earlier run has."""

    @property
    def device(self) -> str:
        """As torch calls it."""
        return "cpu" if self.is_dry else "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The type of weights and activations; the interpreter's bfloat16 is wrong."""
        return torch.float32 if self.is_dry else torch.bfloat16

    @property
    def name(self) -> str:
        """The GPU's."""
        return "dry run" if self.is_dry else torch.cuda.get_device_name()

    @property
    def slug(self) -> str:
        """The name as a folder has it."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def has_fp8(self) -> bool:
        """Whether it computes with codes of FP8; on a CPU torch and the interpreter do."""
        return self.is_dry or torch.cuda.get_device_capability() >= FP8_CAPABILITY

    def described(self) -> dict[str, str]:
        """What a figure depends on beside the code."""
        versions = {name: _version(name) for name in ("torch", "triton", "transformers")}
        return {
            "GPU": self.name,
            "CUDA": torch.version.cuda or "none",
            **versions,
            "python": platform.python_version(),
        }

    def wait(self) -> None:
        """Until everything that was launched has run."""
        if not self.is_dry:
            torch.cuda.synchronize()

    def require_alive(self, error: Exception) -> None:
        """Raise DeviceLostError where what failed took the device with it, else free what it held.

        An error of a kernel is told by whichever call comes next, and by all that follow.
        """
        try:
            self.wait()
        except RuntimeError as lost:
            raise DeviceLostError(f"{error}; then {lost}") from error
        traceback.clear_frames(error.__traceback__)
        self.tidy()

    def tidy(self) -> None:
        """Give freed memory back, before something large is made."""
        gc.collect()
        if not self.is_dry:
            torch.cuda.empty_cache()

    def seconds_of(self, run: Callable[[], object]) -> float:
        """Median time of a call among the replays of a CUDA graph of many."""
        if self.is_dry:
            started = time.perf_counter()
            run()
            return time.perf_counter() - started
        from triton import testing  # noqa: PLC0415 - after the choice of the interpreter

        time_ms: Any = testing.do_bench_cudagraph(run, rep=50, return_mode="median")
        return float(time_ms) / 1e3


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
