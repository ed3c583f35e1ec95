"""A matrix product with its weight laid out for the device, once, at load.

On a CPU it is the compiled one (paceline_kernels/cpu/matmul.c), where there is a compiler and the
weights are float32 or bfloat16; oneDNN's or torch's elsewhere.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from paceline_engine.core.model_config import Activation
from paceline_engine.model.layers.packed_linear import PackedLinear, has_onednn
from paceline_engine.model.layers.product_choice import is_for_onednn
from paceline_kernels.cpu import Gate, Matmul, native_ops


class Linear(Protocol):
    """Maps [rows, in] to [rows, out]."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """Multiply, and add the bias where there is one."""
        ...


class PlainLinear:
    """The weight as checkpoints have it; cuBLAS is at its best with it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight  # [out, in]
        self.bias = bias  # [out]

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """See `Linear`; `out` [rows, out] takes the result."""
        if out is None:
            return functional.linear(x, self.weight, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=out)
        return torch.addmm(self.bias, x, self.weight.t(), out=out)


class NativeLinear:
    """The weight in the panels of the compiled product; quantised, with its scales [out]."""

    def __init__(
        self,
        matmul: Matmul,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        scales: Tensor | None = None,
        is_wide: bool = False,
    ) -> None:
        self.weight = matmul.pack(weight, scales)
        self._is_wide = is_wide  # the result is float32
        self.bias = None if bias is None else bias.float()  # [out]
        self._matmul = matmul

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, self.weight, self.bias, is_wide=self._is_wide)


class NativeGatedLinear:
    """Gate and up in one product: the compiled product applies the activation itself."""

    def __init__(
        self,
        matmul: Matmul,
        weight: Tensor,
        activation: Activation,
        *,
        scales: Tensor | None = None,
    ) -> None:
        self.weight = matmul.pack(weight, scales, is_gated=True)
        self._matmul = matmul
        self.gate: Gate = activation

    def __call__(self, x: Tensor) -> Tensor:  # [rows, in] -> [rows, out]
        """See `Linear`."""
        return self._matmul.gated(x, self.weight, self.gate)


class TransposedLinear:
    """The weight as [in, out], contiguous: for CPUs that oneDNN does not serve."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight.t().contiguous()  # [in, out]
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        y = x @ self.weight
        return y if self.bias is None else y.add_(self.bias)


def serves(weight: Tensor) -> bool:
    """Tell whether the compiled product serves rows of this weight's type and size [out, in]."""
    is_pairs = weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0
    return weight.device.type == "cpu" and (weight.dtype == torch.float32 or is_pairs)


def compiled_for(weight: Tensor) -> Matmul | None:
    """Return the compiled product where it serves a weight; None where oneDNN is much faster."""
    native = native_ops()
    if native is None or not serves(weight):
        return None
    is_measured = weight.dtype == torch.bfloat16 and has_onednn(weight.dtype)
    if is_measured and is_for_onednn(native.matmul, *weight.shape):
        return None
    return native.matmul


def linear(weight: Tensor, bias: Tensor | None = None, *, is_head: bool = False) -> Linear:
    """Lay `weight` [out, in] out for the device it is on. It is copied on a CPU.

    The compiled product of a head returns its sums as they are, in float32.
    """
    if weight.device.type != "cpu":
        return PlainLinear(weight, bias)
    if (matmul := compiled_for(weight)) is not None:
        return NativeLinear(matmul, weight, bias, is_wide=is_head)
    if has_onednn(weight.dtype):
        return PackedLinear(weight, bias)
    return TransposedLinear(weight, bias)
