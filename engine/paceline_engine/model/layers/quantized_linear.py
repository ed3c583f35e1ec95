"""A matrix product whose weight is kept in INT8 or FP8: symmetric, a scale for each output.

On a CPU the weight becomes float tile by tile, just before it is multiplied. Measured on 1 core
(AVX512), float32, processor time, milliseconds, beside oneDNN with the same weight in float32:

    rows                                  1      4      16     64     256
    576 to 3072, float32                  0.12   0.16   0.65   2.4    8.7
    576 to 3072, this                     0.25   0.45   0.91   3.3    11.4
    576 to 3072, `_weight_int8pack_mm`    1.4    6.0    24     97     384

So it saves memory there, not time; torch's own product with INT8 weights is written for bfloat16.
On a GPU a kernel reads the weight once, a byte a value.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import paceline_kernels
from paceline_engine.settings import Quantization
from paceline_kernels.fp8 import CODES, LARGEST, widen

# Values that are float at a time, 4 MiB of them: of 64 Ki, 256 Ki and 1 Mi values the fastest.
_TILE_VALUES = 1 << 20
_LARGEST_INT8 = 127


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """`values * scales`, output by output."""

    values: Tensor  # [out, in] int8, or float8_e4m3fn
    scales: Tensor  # [out] float32


def quantize(weight: Tensor, to: Quantization = "int8") -> QuantizedWeight:  # [out, in]
    """Bring each output's largest value to the largest there is, and round to the nearest.

    INT8: of 255 steps, -127 to 127. FP8 (E4M3): of 4 bits, whatever the value's size.
    """
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    largest = torch.where(largest > 0, largest, 1.0)
    if to == "fp8":
        scales = largest / LARGEST
        return QuantizedWeight((wide / scales[:, None]).to(CODES), scales)
    scales = largest / _LARGEST_INT8
    return QuantizedWeight((wide / scales[:, None]).round_().to(torch.int8), scales)


class TiledLinear:
    """For a CPU."""

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
    """For a GPU."""

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
) -> TiledLinear | KernelLinear:
    """Quantise `weight` [out, in], for the device it is on."""
    quantized = quantize(weight, to)
    if weight.device.type == "cpu":
        return TiledLinear(quantized, bias)
    return KernelLinear(quantized, bias)
