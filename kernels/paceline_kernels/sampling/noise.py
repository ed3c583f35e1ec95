"""Gumbel noise without state: a row's seed, its position and an index give the number, on a GPU.

`reference.py` computes the same in whole numbers of 64 bits.
"""

import triton
import triton.language as tl

GROUP_STREAM = tl.constexpr(0x80000000)
"""Indices of groups begin here, those of tokens at 0: their numbers have nothing in common."""


@triton.jit
def _mix64(value):
    """SplitMix64: each bit of the result depends on each bit of the value."""
    value = value + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _mix32(value):
    """The same for 32 bits, with Wellons' constants (hash-prospector, "lowbias32")."""
    value = (value ^ (value >> 16)) * 0x7FEB352D
    value = (value ^ (value >> 15)) * 0x846CA68B
    return value ^ (value >> 16)


@triton.jit
def row_key(seed, position):
    """What all the noise of one draw follows from."""
    return _mix64(_mix64(seed.to(tl.uint64)) + position.to(tl.uint64))


@triton.jit
def gumbel(key, index):
    """-log(E) with E exponential of rate 1: the largest of logit + gumbel is a draw.

    E = -log(1 - v) of a v in (0, 1), by its series where v is small: there the winners lie.
    """
    low = (key & 0xFFFFFFFF).to(tl.uint32)
    high = (key >> 32).to(tl.uint32)
    bits = _mix32(_mix32(index.to(tl.uint32) ^ low) ^ high)
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    return -tl.log(tl.where(v < 1e-3, v * (1.0 + 0.5 * v), -tl.log(1.0 - v)))
