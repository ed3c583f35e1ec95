"""Rows in FP8, each with a scale of its own: what a product of FP8 with FP8 takes."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.fp8_rows.reference import quantize_rows as reference_quantize_rows

quantize_rows = by_device(reference_quantize_rows)

__all__ = ["quantize_rows", "reference_quantize_rows"]
