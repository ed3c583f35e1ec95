"""E4M3 codes and their shared exponents within a kernel; `codes.py` says what they are.

Codes are made of a float32's bits rather than converted: the few instructions hide behind the
launch, and Triton's interpreter, whose conversion loses the carry of what it rounds up, computes
what a GPU does.
"""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

# Bits of float32.
_INFINITY = tl.constexpr(0x7F800000)
_TWO_TO_MINUS_6 = tl.constexpr(0x3C800000)
_TWO_TO_14 = tl.constexpr(0x46800000)
_NOT_A_NUMBER = tl.constexpr(255)


@triton.jit
def exponent_of(first, second):
    """Give the exponent of each row [rows] of the two halves [rows, columns], in float32."""
    largest = tl.maximum(
        tl.max(first.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1),
        tl.max(second.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1),
    )  # as whole numbers: NaN is the largest of all, then infinity
    exponent = tl.maximum(((largest + 0x1FFFFF) >> 23) - 8, 1)
    return tl.where(largest >= _INFINITY, _NOT_A_NUMBER, exponent)


@triton.jit
def inverse_scale_of(exponent):
    """Give what brings the row's values within E4M3, float32."""
    return ((254 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def scale_of(exponent):
    """Give what the codes are multiplied by, float32; NaN where there was no number."""
    wide = exponent.to(tl.int32)
    return ((wide << 23) | ((wide == _NOT_A_NUMBER).to(tl.int32) << 22)).to(
        tl.float32, bitcast=True
    )


@triton.jit
def encode(x):
    """Round float32 within +-448 to the nearest code, to an even one between two; uint8."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # Of 24 bits 4 stay; the exponent counts from 7 instead of from 127.
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 codes are multiples of 2^-9, the last bit of 2^14.
    small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - _TWO_TO_14
    code = tl.where(size < _TWO_TO_MINUS_6, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def widened(codes, dtype: tl.constexpr):
    """Give the values of E4M3 codes in a float type, all of which hold them exactly."""
    # Triton 3.6 goes by way of float16, from which only 9.0 and newer convert to bfloat16.
    if dtype == tl.bfloat16 and not cuda_capability_geq(9, 0):
        codes = codes.to(tl.float32)
    return codes.to(dtype)
