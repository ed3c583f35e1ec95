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
"""Activation of the first half of the outputs, which then multiplies the second half."""

_PLAIN = 0
GATES: dict[Gate, int] = {"silu": 1, "gelu_tanh": 2}
# As in tiles.h.
_FLOAT32, _FLOAT32_BY_INT8, _FLOAT32_BY_FP8, _BFLOAT16, _BYTES = range(5)
_GROUP_INPUTS = {_BFLOAT16: 2, _BYTES: 4}
_GATED_LANES = 32
"""Gated outputs are a multiple of it: whole vectors of both halves."""


def function(library: CDLL, name: str, arguments: list[Any], result: Any = None) -> Any:
    """Type one of the functions whose last argument is the number of threads."""
    found = getattr(library, name)
    found.argtypes = [*arguments, c_int]
    found.restype = result
    return found


def address(tensor: Tensor | None) -> int | None:
    """Return the address of the tensor's data; None, a null pointer, for no tensor."""
    return None if tensor is None else tensor.data_ptr()


def addresses(exponents: Exponents) -> tuple[int | None, int | None]:
    """Return the addresses of the exponents of keys and of values."""
    return (None, None) if exponents is None else (address(exponents[0]), address(exponents[1]))


def require(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """Raise ValueError for a wrong tensor, with which C would read or write out of bounds."""
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous():
        seen = f"{tuple(tensor.shape)} {tensor.dtype} with strides {tensor.stride()}"
        raise ValueError(f"{name} must be contiguous {tuple(shape)} {dtype}, got {seen}")


def can_gate(outputs: int) -> bool:
    """Tell whether a weight of so many outputs, both halves together, can be packed as gated."""
    return outputs % _GATED_LANES == 0


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight [outputs, inputs] in panels; only `Matmul` can read it."""

    panels: Tensor  # [panels, groups, panel width * inputs of a group], zeros at both ends
    scales: Tensor | None  # [panels, 1, panel width], where the weight is a byte a number
    outputs: int
    inputs: int
    is_gated: bool
    kind: int
    """As in tiles.h: what is multiplied."""

    @property
    def nbytes(self) -> int:
        """Count the bytes that a product reads."""
        return self.panels.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def takes(self, dtype: torch.dtype) -> bool:
        """Tell whether rows of this type are multiplied as they come, none widened before."""
        if dtype == torch.bfloat16:
            return self.kind in (_BFLOAT16, _BYTES)
        return dtype == torch.float32 and self.kind != _BFLOAT16


class Matmul:
    """Products of rows in float32 or bfloat16; every tensor is contiguous and on the CPU.

    Weights in bfloat16 are for rows in bfloat16. INT8 weights are for both: with instructions for
    products of bytes, each row is brought to bytes with a scale of its own; without them, the
    weights are widened. FP8 weights are widened.
    """

    def __init__(self, library: CDLL) -> None:
        packing = [c_void_p] * 2 + [c_int64] * 2 + [c_int]
        self._packers = {
            kind: function(library, name, packing)
            for kind, name in {
                _FLOAT32: "pack_floats",
                _FLOAT32_BY_INT8: "pack_bytes",
                _FLOAT32_BY_FP8: "pack_bytes",
                _BFLOAT16: "pack_bfloat16",
                _BYTES: "pack_unsigned_bytes",
            }.items()
        }
        sizes = [c_void_p] * 5 + [c_int64] * 3 + [c_int] * 4
        self._matmul = function(library, "matmul", sizes, c_int)
        library.panel_width.restype = c_int64
        self._panel_width: int = library.panel_width()
        self.has_byte_products = bool(library.has_byte_products())
        """Products of bytes are instructions of this CPU."""
        self.has_bfloat16_products = bool(library.has_bfloat16_products())
        """Products of bfloat16 are instructions of this CPU."""
        self.has_tile_products = bool(library.has_tile_products())
        """This process may use the tiles of AMX."""

    def kind_of(self, dtype: torch.dtype, inputs: int) -> int:
        """Choose how a weight of this type is multiplied; see tiles.h. Raises ValueError."""
        if dtype == torch.float32:
            return _FLOAT32
        if dtype == torch.bfloat16:
            kind = _BFLOAT16
        elif dtype == torch.int8:
            kind = _BYTES if self.has_byte_products and inputs % 4 == 0 else _FLOAT32_BY_INT8
        elif dtype == CODES:
            kind = _FLOAT32_BY_FP8
        else:
            raise ValueError(f"cannot pack a weight of {dtype}")
        if inputs % _GROUP_INPUTS.get(kind, 1):
            raise ValueError(f"inputs must be even for bfloat16, got {inputs}")
        return kind

    def pack(
        self, weight: Tensor, scales: Tensor | None = None, *, is_gated: bool = False
    ) -> PackedWeight:
        """Copy a weight [outputs, inputs]; if gated, its first half are the gates of the second.

        It is float32 or bfloat16, or int8 or float8_e4m3fn with float32 `scales` [outputs], by
        which its outputs are multiplied. Raises ValueError where gated outputs are not a multiple
        of 32, or inputs of bfloat16 are odd.
        """
        outputs, inputs = weight.shape
        require("weight", weight, (outputs, inputs), weight.dtype)
        if (weight.dtype in (torch.int8, CODES)) != (scales is not None):
            raise ValueError(f"scales go with int8 and {CODES}, and only with them")
        if is_gated and not can_gate(outputs):
            raise ValueError(f"gated outputs must be a multiple of {_GATED_LANES}, got {outputs}")
        kind = self.kind_of(weight.dtype, inputs)
        in_order = None
        if scales is not None:
            require("scales", scales, (outputs,))
            in_order = self._panels(scales.unsqueeze(1), _FLOAT32, is_gated=is_gated)
        panels = self._panels(weight, kind, is_gated=is_gated)
        return PackedWeight(panels, in_order, outputs, inputs, is_gated, kind)

    def _panels(self, weight: Tensor, kind: int, *, is_gated: bool) -> Tensor:
        outputs, inputs = weight.shape
        group = _GROUP_INPUTS.get(kind, 1)
        panels = torch.empty(
            -(-outputs // self._panel_width),
            inputs // group,
            self._panel_width * group,
            dtype=weight.dtype,
        )
        prefer_huge_pages(panels)
        self._packers[kind](
            weight.data_ptr(),
            panels.data_ptr(),
            outputs,
            inputs,
            is_gated,
            torch.get_num_threads(),
        )
        return panels

    def __call__(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None = None,
        *,
        is_wide: bool = False,
    ) -> Tensor:
        """`x @ weight.T + bias`, [rows, inputs] to [rows, outputs]; the bias is float32.

        The result is as `x`, or float32 if it `is_wide`.
        """
        if weight.is_gated:
            raise ValueError("a gated weight is for `gated`")
        if bias is not None:
            require("bias", bias, (weight.outputs,))
        return self._run(x, weight, bias, weight.outputs, _PLAIN, is_wide=is_wide)

    def gated(self, x: Tensor, weight: PackedWeight, gate: Gate) -> Tensor:
        """`gate(x @ first half.T) * (x @ second half.T)`, [rows, inputs] to [rows, outputs / 2]."""
        if not weight.is_gated:
            raise ValueError("the weight must be packed as gated")
        return self._run(x, weight, None, weight.outputs // 2, GATES[gate])

    def _run(
        self,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None,
        width: int,
        how: int,
        *,
        is_wide: bool = False,
    ) -> Tensor:
        rows = len(x)
        is_bf16 = x.dtype == torch.bfloat16
        if is_bf16 and weight.kind in (_FLOAT32_BY_INT8, _FLOAT32_BY_FP8):
            wide = self._run(x.float(), weight, bias, width, how)
            return wide if is_wide else wide.bfloat16()
        other = torch.bfloat16 if weight.kind == _BFLOAT16 else torch.float32
        require("x", x, (rows, weight.inputs), x.dtype if weight.takes(x.dtype) else other)
        out = x.new_empty(rows, width, dtype=torch.float32 if is_wide else x.dtype)
        failed = self._matmul(
            x.data_ptr(),
            weight.panels.data_ptr(),
            address(weight.scales),
            address(bias),
            out.data_ptr(),
            rows,
            weight.outputs,
            weight.inputs,
            weight.kind,
            is_bf16,
            is_wide,
            how,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the bytes of a product's rows")
        return out
