"""Calls into the compiled library: typed functions, checked tensors, packed products.

A weight is laid out for the compiled product once, at load.
"""

from ctypes import CDLL, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.cpu.huge_pages import prefer_huge_pages
from paceline_kernels.fp8 import CODES

Gate = Literal["silu", "gelu_tanh"]
"""What the first half of the outputs goes through before it multiplies the second."""

_PLAIN = 0
_GATES: dict[Gate, int] = {"silu": 1, "gelu_tanh": 2}
_WEIGHTS: dict[torch.dtype, int] = {torch.float32: 0, torch.int8: 1, CODES: 2}
_GATED_LANES = 32
"""Gated outputs are a multiple of it: whole vectors of both halves."""


def function(library: CDLL, name: str, arguments: list[Any], result: Any = None) -> Any:
    """Type one of the functions whose last argument is the number of threads."""
    found = getattr(library, name)
    found.argtypes = [*arguments, c_int]
    found.restype = result
    return found


def address(tensor: Tensor | None) -> int | None:
    """Tell where the numbers are; a null pointer for none."""
    return None if tensor is None else tensor.data_ptr()


def addresses(exponents: Exponents) -> tuple[int | None, int | None]:
    """Tell where those of keys and of values are."""
    return (None, None) if exponents is None else (address(exponents[0]), address(exponents[1]))


def require(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """C believes what it is told: a wrong tensor would read or write foreign memory."""
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous():
        seen = f"{tuple(tensor.shape)} {tensor.dtype} with strides {tensor.stride()}"
        raise ValueError(f"{name} must be contiguous {tuple(shape)} {dtype}, got {seen}")


def can_gate(outputs: int) -> bool:
    """Tell whether a weight of so many outputs, both halves together, can be packed as gated."""
    return outputs % _GATED_LANES == 0


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs] in panels; only `Matmul` can read it."""

    panels: Tensor  # [panels, inputs, panel width], the last filled with zeros
    scales: Tensor | None  # [panels, 1, panel width], where the panels hold bytes
    outputs: int
    inputs: int
    is_gated: bool


class Matmul:
    """Every tensor is contiguous and on the CPU, and float32 but for weights of a byte a number."""

    def __init__(self, library: CDLL) -> None:
        packing = [c_void_p] * 2 + [c_int64] * 2 + [c_int]
        self._pack_floats = function(library, "pack_floats", packing)
        self._pack_bytes = function(library, "pack_bytes", packing)
        self._matmul = function(library, "matmul", [c_void_p] * 5 + [c_int64] * 3 + [c_int] * 2)
        library.panel_width.restype = c_int64
        self._panel_width: int = library.panel_width()

    def pack(
        self, weight: Tensor, scales: Tensor | None = None, *, is_gated: bool = False
    ) -> PackedWeight:
        """Copy a weight [outputs, inputs]; if gated, its first half are the gates of the second.

        It is float32, or int8 or float8_e4m3fn with `scales` [outputs], by which its outputs are
        multiplied. Raises ValueError where gated outputs are not a multiple of 32.
        """
        outputs, inputs = weight.shape
        has_scales = weight.dtype in (torch.int8, CODES)
        require("weight", weight, (outputs, inputs), weight.dtype if has_scales else torch.float32)
        if has_scales != (scales is not None):
            raise ValueError(f"scales go with int8 and {CODES}, and only with them")
        if is_gated and not can_gate(outputs):
            raise ValueError(f"gated outputs must be a multiple of {_GATED_LANES}, got {outputs}")
        in_order = None
        if scales is not None:
            require("scales", scales, (outputs,))
            in_order = self._panels(scales.unsqueeze(1), is_gated=is_gated)
        panels = self._panels(weight, is_gated=is_gated)
        return PackedWeight(panels, in_order, outputs, inputs, is_gated)

    def _panels(self, weight: Tensor, *, is_gated: bool) -> Tensor:
        outputs, inputs = weight.shape
        panels = torch.empty(
            -(-outputs // self._panel_width), inputs, self._panel_width, dtype=weight.dtype
        )
        prefer_huge_pages(panels)
        pack = self._pack_floats if weight.dtype == torch.float32 else self._pack_bytes
        pack(
            weight.data_ptr(),
            panels.data_ptr(),
            outputs,
            inputs,
            is_gated,
            torch.get_num_threads(),
        )
        return panels

    def __call__(self, x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, [rows, inputs] to [rows, outputs]."""
        if weight.is_gated:
            raise ValueError("a gated weight is for `gated`")
        if bias is not None:
            require("bias", bias, (weight.outputs,))
        return self._run(x, weight, bias, weight.outputs, _PLAIN)

    def gated(self, x: Tensor, weight: PackedWeight, gate: Gate) -> Tensor:
        """`gate(x @ first half.T) * (x @ second half.T)`, [rows, inputs] to [rows, outputs / 2]."""
        if not weight.is_gated:
            raise ValueError("the weight must be packed as gated")
        return self._run(x, weight, None, weight.outputs // 2, _GATES[gate])

    def _run(
        self, x: Tensor, weight: PackedWeight, bias: Tensor | None, width: int, how: int
    ) -> Tensor:
        rows = len(x)
        require("x", x, (rows, weight.inputs))
        out = x.new_empty(rows, width)
        self._matmul(
            x.data_ptr(),
            weight.panels.data_ptr(),
            address(weight.scales),
            address(bias),
            out.data_ptr(),
            rows,
            weight.outputs,
            weight.inputs,
            _WEIGHTS[weight.panels.dtype],
            how,
            torch.get_num_threads(),
        )
        return out
