"""Logits as whole numbers in the same order, so that a place between two is found by halving."""

import triton
import triton.language as tl


@triton.jit
def ordered(x):
    """Whole numbers in the order of the floats, 0 and -0 alike."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)


@triton.jit
def float_of(key):
    """Return the float of a key: the inverse of `ordered`."""
    return tl.where(key >= 0, key, key ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def decoded(key, SHIFT: tl.constexpr):
    """The float of a key without its low bits: they are all 0, or all 1 of a negative one."""
    low = tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return float_of((key << SHIFT) | low)
