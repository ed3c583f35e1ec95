"""The first half of an MLP: `act(gate(x)) * up(x)`."""

from collections.abc import Callable
from typing import Generic, TypeVar

from torch import Tensor

from paceline_engine.core.model_config import Activation
from paceline_engine.model.layers.linear import NativeGatedLinear, compiled_for, serves
from paceline_engine.model.layers.quantized_linear import quantize
from paceline_engine.settings import Quantization
from paceline_kernels.cpu import can_gate, native_ops

Taken = TypeVar("Taken")
Gated = TypeVar("Gated")


class GatedLinear(Generic[Taken, Gated]):
    """A product of both halves, then the gate; `fused_ops` says what each returns."""

    def __init__(self, product: Callable[[Taken], Tensor], gate: Callable[[Tensor], Gated]) -> None:
        self.product = product  # [rows, in] to [rows, 2 * out]
        self._gate = gate

    def __call__(self, x: Taken) -> Gated:  # [rows, in] -> [rows, out]
        """See `Linear`."""
        return self._gate(self.product(x))


def fused_gated_linear(
    weight: Tensor, activation: Activation, quantization: Quantization
) -> NativeGatedLinear | None:
    """Lay out a weight [2 * out, in] for one step, where the compiled product takes it."""
    if not serves(weight) or not can_gate(len(weight)):
        return None
    if quantization == "none":
        matmul = compiled_for(weight)
        return None if matmul is None else NativeGatedLinear(matmul, weight, activation)
    native = native_ops()
    if native is None or quantization == "fp8_dynamic":  # torch computes this product
        return None
    quantized = quantize(weight, quantization)
    return NativeGatedLinear(native.matmul, quantized.values, activation, scales=quantized.scales)
