"""Products with weights that are laid out for the compiled product, once, at load."""

from ctypes import CDLL, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from paceline_kernels.cpu.foreign import address, function, require
from paceline_kernels.cpu.huge_pages import prefer_huge_pages

Gate = Literal["silu", "gelu_tanh"]
"""What the first half of the outputs goes through before it multiplies the second."""

_PLAIN = 0
_GATES: dict[Gate, int] = {"silu": 1, "gelu_tanh": 2}
_GATED_LANES = 32
"""Gated outputs are a multiple of it: whole vectors of both halves."""


def can_gate(outputs: int) -> bool:
    """Tell whether a weight of so many outputs, both halves together, can be packed as gated."""
    return outputs % _GATED_LANES == 0


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs] in panels; only `Matmul` can read it."""

    panels: Tensor  # [panels, inputs, panel width], the last filled with zeros
    outputs: int
    inputs: int
    is_gated: bool


class Matmul:
    """Every tensor is contiguous, float32 and on the CPU."""

    def __init__(self, library: CDLL) -> None:
        self._pack = function(library, "pack_weight", [c_void_p] * 2 + [c_int64] * 2 + [c_int])
        self._matmul = function(library, "matmul", [c_void_p] * 4 + [c_int64] * 3 + [c_int])
        library.panel_width.restype = c_int64
        self._panel_width: int = library.panel_width()

    def pack(self, weight: Tensor, *, is_gated: bool = False) -> PackedWeight:
        """Copy a weight [outputs, inputs]; if gated, its first half are the gates of the second.

        Raises ValueError where gated outputs are not a multiple of 32.
        """
        outputs, inputs = weight.shape
        require("weight", weight, (outputs, inputs))
        if is_gated and not can_gate(outputs):
            raise ValueError(f"gated outputs must be a multiple of {_GATED_LANES}, got {outputs}")
        width = self._panel_width
        panels = torch.empty(-(-outputs // width), inputs, width)
        prefer_huge_pages(panels)
        self._pack(
            weight.data_ptr(),
            panels.data_ptr(),
            outputs,
            inputs,
            is_gated,
            torch.get_num_threads(),
        )
        return PackedWeight(panels, outputs, inputs, is_gated)

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
            address(bias),
            out.data_ptr(),
            rows,
            weight.outputs,
            weight.inputs,
            how,
            torch.get_num_threads(),
        )
        return out
