"""A matrix product with a weight of 4 bits and activations of 16 (W4A16)."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.int4.layout import GROUP_SIZES, Int4Weight, from_awq, from_gptq, pack
from paceline_kernels.int4.reference import dequantize
from paceline_kernels.int4.reference import int4_linear as reference_int4_linear

int4_linear = by_device(reference_int4_linear)

__all__ = [
    "GROUP_SIZES",
    "Int4Weight",
    "dequantize",
    "from_awq",
    "from_gptq",
    "int4_linear",
    "pack",
    "reference_int4_linear",
]
