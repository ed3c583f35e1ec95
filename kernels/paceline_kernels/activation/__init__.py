"""The gate of the MLP."""

from paceline_kernels.activation.reference import silu_mul as reference_silu_mul
from paceline_kernels.dispatch import by_device

silu_mul = by_device(reference_silu_mul)

__all__ = ["reference_silu_mul", "silu_mul"]
