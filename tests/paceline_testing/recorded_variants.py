"""Which variants of kernels are compiled: told on a CPU, where references compute.

For each op that runs, the kernel's launcher runs beside the reference. Triton sees the same tensors
as on a GPU and tells variants apart as there; only its compiler makes nothing. Triton must not have
been imported as an interpreter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest import mock

import triton
import triton.compiler
from torch import Tensor
from triton.backends.compiler import GPUTarget

from paceline_kernels import dispatch, tuned

_devices = count()
"""Of each device, Triton remembers what it has compiled."""


class _Hopper:
    """As much of Triton's driver as telling variants apart asks for."""

    def __init__(self) -> None:
        self._device = next(_devices)

    def get_current_device(self) -> int:
        return self._device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class _Nothing:
    """A kernel that does nothing."""

    function = None
    packed_metadata = None

    def __getitem__(self, _grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_args: None

    def launch_metadata(self, *_args: object) -> None:
        """Tell profilers nothing."""

    def run(self, *_args: object) -> None:
        """Compute nothing."""


@contextmanager
def launchers_beside_references() -> Iterator[None]:
    """Launch kernels that do nothing, as on a GPU on which nothing was compiled before."""
    driver: Any = _Hopper()
    triton.runtime.driver.set_active(driver)

    def both(reference: Callable[..., Any], _first: Tensor) -> Callable[..., Any]:
        launcher = dispatch.launcher(reference)

        def op(*args: Any, **kwargs: Any) -> Any:
            launcher(*args, **kwargs)
            return reference(*args, **kwargs)

        return op

    with (
        tuned.blocks_of.as_if(tuned.SHIPPED, tuned.Gpu("", (9, 0))),
        mock.patch.object(triton.compiler, "compile", return_value=_Nothing()),
        mock.patch.object(dispatch, "chosen", both),
    ):
        yield
