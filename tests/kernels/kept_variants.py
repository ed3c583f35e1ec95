"""Compiles some kernels as an image's build would, or launches them as a pod does: prints which.

A process of its own, for `test_variant_cache.py`: there, triton was imported as an interpreter.
`ahead` calls the launchers under a driver that names its target alone. `serve` goes the way of a
pod, up to the driver: what would be loaded onto the device is noted.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Final
from unittest import mock

os.environ.pop("TRITON_INTERPRET", None)  # read when triton is imported

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from paceline_kernels import tuned
from paceline_testing.gpus import GPUS, WARP
from paceline_testing.launches import SHAPES, Launches

_SHAPE: Final = next(shape for shape in SHAPES if shape.name == "llama-3.1-8b")


class CompilingDriver:
    """As much of Triton's driver as compiling asks for."""

    def __init__(self, capability: int, device: int) -> None:
        self._target = GPUTarget("cuda", capability, WARP)
        self._device = device

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


class PodDriver(CompilingDriver):
    """Loads nothing and launches nothing, and notes what it is given."""

    def __init__(self, capability: int, device: int) -> None:
        super().__init__(capability, device)
        self.loaded: list[str] = []
        self.utils = self

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 20}

    def launcher_cls(self, _source: object, _metadata: object) -> Callable[..., None]:
        return lambda *_: None

    def load_binary(self, name: str, binary: bytes, *_: object) -> tuple[object, ...]:
        self.loaded.append(told(name, binary))
        return object(), object(), 0, 0, 1024

    def unload_module(self, _module: object) -> None: ...


def told(name: str, binary: bytes) -> str:
    """Name a kernel and its machine code."""
    return f"{name} {hashlib.sha256(binary).hexdigest()}"


def launch() -> None:
    """Give a layer's norm and attention of decodes to the device."""
    launches = Launches(_SHAPE)
    launches.rms_norm()
    launches.decode_attention()


def compiled_ahead(capability: int) -> list[str]:
    """Compile what is launched, without a GPU."""
    driver: Any = CompilingDriver(capability, device=0)
    triton.runtime.driver.set_active(driver)
    variants: dict[str, str] = {}
    run: Any = JITFunction.run

    def compile_only(function: Any, *args: Any, **kwargs: Any) -> None:
        one: CompiledKernel = run(function, *args, **{**kwargs, "warmup": True})
        variants[one.hash] = told(one.name, one.asm["cubin"])

    with mock.patch.object(JITFunction, "run", compile_only):
        launch()
    return list(variants.values())


def served(capability: int) -> list[str]:
    """Launch, on a device of another number."""
    driver: Any = PodDriver(capability, device=5)
    triton.runtime.driver.set_active(driver)
    launch()
    loaded: list[str] = driver.loaded
    return loaded


def main() -> None:
    """Print each variant's machine code by its digest, and how many were not found."""
    way, gpu = sys.argv[1], GPUS[sys.argv[2]]
    made: list[bool] = []
    knobs: Any = triton.knobs
    knobs.compilation.listener = lambda *, cache_hit, **_: made.append(not cache_hit)
    device = tuned.Gpu("", (gpu.capability // 10, gpu.capability % 10))
    with tuned.blocks_of.as_if(tuned.SHIPPED, device):
        found = (compiled_ahead if way == "ahead" else served)(gpu.capability)
    json.dump({"kernels": sorted(found), "compiled": sum(made)}, sys.stdout)


if __name__ == "__main__":
    main()
