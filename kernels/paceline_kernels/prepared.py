"""Caches launches: arguments that look alike are checked and bound by Triton once.

A step makes the same call for each of its layers, with other memory. What a launcher demands of its
tensors, the grid and the constants follow from how the arguments look, and so does the variant that
Triton compiles; working them out again takes the host several times as long as the launch itself.
"""

from collections.abc import Hashable, Mapping
from importlib import import_module
from typing import Any

from torch import Tensor

from paceline_kernels.dependent import dependent
from paceline_kernels.tuned import blocks_of

MOST_CALLS = 2048
"""Calls cached for each kernel: token counts differ between steps, so the cache is bounded."""
_ALIGNED = 16
"""Bytes: Triton compiles another variant for a pointer that is not a multiple of this."""

Key = tuple[Hashable, ...]


def looks(tensor: Tensor | None) -> Hashable:
    """Return everything of a tensor that a launcher's checks depend on."""
    if tensor is None:
        return None
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


class Call:
    """A kernel with its grid and constants, for tensors that look like those that were checked."""

    def __init__(self, kernel: Any, grid: tuple[int, ...], **constants: Any) -> None:
        """`constants` are the kernel's own and Triton's options, by name."""
        self._kernel = kernel
        self._grid = (*grid, 1, 1)[:3]
        self._constants = constants
        self._bound: tuple[Any, ...] = ()
        self._variants: dict[tuple[int, ...], Any] = {}

    def __call__(self, pointers: tuple[Tensor | None, ...], *scalars: float) -> None:
        """Launch over these, the kernel's first parameters in its own order.

        A whole number must be the same for all calls that share a key: Triton compiles other
        variants for 1 and for multiples of 16.
        """
        if self._variants:
            variant = self._variants.get(_alignment(pointers))
            if variant is not None:
                variant[self._grid](*pointers, *scalars, *self._bound)
                return
        variant = self._kernel[self._grid](*pointers, *scalars, **self._constants)
        if hasattr(variant, "packed_metadata"):  # compiled: neither interpreted nor recorded
            self._bound = _in_order(self._kernel, self._constants)
            self._variants[_alignment(pointers)] = variant


class Calls:
    """The calls of one kernel by how their arguments look."""

    def __init__(self) -> None:
        self._calls: dict[Key, Call] = {}

    def key(self, *parts: Hashable) -> Key:
        """Return the key of a call: how its tensors look, and whatever else it follows from.

        Tables of blocks and dependent launches may be exchanged between calls.
        """
        return (blocks_of.generation, dependent.is_on, *parts)

    def get(self, key: Key) -> Call | None:
        """Return the call, if there was one."""
        return self._calls.get(key)

    def keep(self, key: Key, call: Call) -> Call:
        """Remember a call whose arguments were checked."""
        if len(self._calls) >= MOST_CALLS:
            self._calls.clear()
        self._calls[key] = call
        return call


def _alignment(pointers: tuple[Tensor | None, ...]) -> tuple[int, ...]:
    return tuple([0 if each is None else each.data_ptr() % _ALIGNED for each in pointers])


def _in_order(kernel: Any, constants: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the constants as the kernel declares them, each that is not given by its default."""
    constexpr = import_module("triton.language").constexpr
    declared = [each for each in kernel.params if each.is_constexpr]
    given = (constants.get(each.name, each.default) for each in declared)
    return tuple(each.value if isinstance(each, constexpr) else each for each in given)
