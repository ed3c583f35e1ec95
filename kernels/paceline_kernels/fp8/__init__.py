"""Numbers of one byte: E4M3 codes, and the power of two that a head of the KV cache shares."""

from paceline_kernels.fp8.codes import (
    CODES,
    EXPONENTS,
    LARGEST,
    dequantize_heads,
    quantize_heads,
    widen,
)

__all__ = ["CODES", "EXPONENTS", "LARGEST", "dequantize_heads", "quantize_heads", "widen"]
