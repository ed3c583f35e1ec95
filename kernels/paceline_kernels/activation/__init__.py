"""The gate of the MLP."""

from paceline_kernels.activation.reference import gelu_tanh_mul as reference_gelu_tanh_mul
from paceline_kernels.activation.reference import silu_mul as reference_silu_mul
from paceline_kernels.dispatch import by_device

silu_mul = by_device(reference_silu_mul)
gelu_tanh_mul = by_device(reference_gelu_tanh_mul)

__all__ = ["gelu_tanh_mul", "reference_gelu_tanh_mul", "reference_silu_mul", "silu_mul"]
