"""A matrix product with a weight in INT8."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.quantized.reference import int8_linear as reference_int8_linear

int8_linear = by_device(reference_int8_linear)

__all__ = ["int8_linear", "reference_int8_linear"]
