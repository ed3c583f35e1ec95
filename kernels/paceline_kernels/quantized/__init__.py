"""A matrix product with a weight in INT8 or FP8."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.quantized.reference import quantized_linear as reference_quantized_linear

quantized_linear = by_device(reference_quantized_linear)

__all__ = ["quantized_linear", "reference_quantized_linear"]
