"""The gate of the MLP, in the activations' type or into FP8."""

from paceline_kernels.activation.reference import gelu_tanh_mul as reference_gelu_tanh_mul
from paceline_kernels.activation.reference import gelu_tanh_mul_fp8 as reference_gelu_tanh_mul_fp8
from paceline_kernels.activation.reference import silu_mul as reference_silu_mul
from paceline_kernels.activation.reference import silu_mul_fp8 as reference_silu_mul_fp8
from paceline_kernels.dispatch import by_device

silu_mul = by_device(reference_silu_mul)
silu_mul_fp8 = by_device(reference_silu_mul_fp8)
gelu_tanh_mul = by_device(reference_gelu_tanh_mul)
gelu_tanh_mul_fp8 = by_device(reference_gelu_tanh_mul_fp8)

__all__ = [
    "gelu_tanh_mul",
    "gelu_tanh_mul_fp8",
    "reference_gelu_tanh_mul",
    "reference_gelu_tanh_mul_fp8",
    "reference_silu_mul",
    "reference_silu_mul_fp8",
    "silu_mul",
    "silu_mul_fp8",
]
