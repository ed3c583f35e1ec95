"""A matrix product whose weight is kept in INT8 or FP8: symmetric, a scale for each output.

It is read once, a byte a value. On a GPU, and of FP8 on a CPU, it becomes float in registers. INT8
on a CPU meets rows that are brought to bytes as they come, with a scale for each 64 inputs of a
token, in products of bytes (AVX-512 VNNI, AVX-VNNI or AMX); without such instructions it becomes
float, too. With `fp8_dynamic` what is multiplied becomes FP8, with a scale for each token
(`fused_ops.py`).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.model.layers.fp8_rows import Fp8Rows, multiply, quantized
from paceline_engine.model.layers.linear import NativeLinear, serves
from paceline_engine.settings import Quantization
from paceline_kernels.cpu import native_ops
from paceline_kernels.fp8 import CODES, LARGEST, widen

# Values widened to float at a time (4 MiB): the fastest of 64 Ki, 256 Ki and 1 Mi values.
_TILE_VALUES = 1 << 20
_LARGEST_INT8 = 127
_FP8_SIDE = 16


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """`values * scales`, output by output."""

    values: Tensor  # [out, in] int8, or float8_e4m3fn
    scales: Tensor  # [out] float32


def quantize(weight: Tensor, to: Quantization = "int8") -> QuantizedWeight:  # [out, in]
    """Scale each output so that its largest value is the type's maximum; round to nearest.

    INT8 uses -127 to 127; FP8 is E4M3, which keeps 4 significant bits at any size.
    """
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    largest = torch.where(largest > 0, largest, 1.0)
    if to != "int8":
        scales = largest / LARGEST
        return QuantizedWeight((wide / scales[:, None]).to(CODES), scales)
    scales = largest / _LARGEST_INT8
    return QuantizedWeight((wide / scales[:, None]).round_().to(torch.int8), scales)


class DynamicFp8Linear:
    """FP8 with FP8, on either device: each token has a scale of its own (W8A8).

    Rows that no op before it has quantised are quantised here.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias  # [out]

    def __call__(self, x: Tensor | Fp8Rows) -> Tensor:
        """See `Linear`."""
        rows = quantized(x) if isinstance(x, Tensor) else x
        y = multiply(rows, self.weight.values, self.weight.scales)
        return y if self.bias is None else y.add_(self.bias)


class TiledLinear:
    """For a CPU without a compiler, or in bfloat16: each tile is widened, then multiplied.

    That saves memory, not time: 2.1 times as long as float32 with one row, 1.3 with many.
    """

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias  # [out]
        self._rows = max(1, _TILE_VALUES // weight.values.shape[1])

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        values = self.weight.values
        y = x.new_empty(len(x), len(values))
        for start in range(0, len(values), self._rows):
            tile = values[start : start + self._rows]
            tile = widen(tile, x.dtype) if tile.dtype == CODES else tile.to(x.dtype)
            torch.mm(x, tile.t(), out=y[:, start : start + self._rows])
        y *= self.weight.scales.to(x.dtype)
        return y if self.bias is None else y.add_(self.bias)


class KernelLinear:
    """The product of our kernel, for a GPU."""

    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return paceline_kernels.quantized_linear(
            x, self.weight.values, self.weight.scales, self.bias
        )


def quantized_linear(
    weight: Tensor, bias: Tensor | None = None, *, to: Quantization
) -> TiledLinear | NativeLinear | KernelLinear | DynamicFp8Linear:
    """Quantise `weight` [out, in], for the device it is on.

    Where a side is no multiple of 16, which tensor cores ask of FP8, only the weight is.
    """
    quantized = quantize(weight, to)
    if to == "fp8_dynamic" and not any(side % _FP8_SIDE for side in weight.shape):
        return DynamicFp8Linear(quantized, bias)
    if weight.device.type != "cpu":
        return KernelLinear(quantized, bias)
    if serves(weight) and (native := native_ops()) is not None:
        return NativeLinear(native.matmul, quantized.values, bias, scales=quantized.scales)
    return TiledLinear(quantized, bias)
