"""Logits that a cut cannot lie below, from what is known of the groups alone."""

import triton
import triton.language as tl

from paceline_kernels.sampling.keys import float_of, ordered

_COARSE = tl.constexpr(1 << 16)
"""Bits of a float32 that are searched: a bound need not be sharper than a hundredth."""
_DEEPEST = tl.constexpr(32.0)
"""exp(-32) of the likeliest, a million times, is nothing in float32."""


@triton.jit
def bound_of_count(best, peak, k):
    """A logit that at least `k` groups reach: near the k-th largest of their best, and below it."""
    keys = ordered(best)
    low = tl.full([], -0x7F7FFFFF - 1, dtype=tl.int64)
    high = ordered(peak).to(tl.int64)
    while low + _COARSE < high:
        middle = (low + high + 1) >> 1
        if tl.sum((keys >= middle.to(tl.int32)).to(tl.int32), axis=0) >= k:
            low = middle
        else:
            high = middle - 1
    return float_of(low.to(tl.int32))


@triton.jit
def bound_of_mass(best, sums, peak, inverse, temperature, p, GROUP: tl.constexpr):
    """A logit below which there is at most `1 - p` of the mass; -inf where none is sure."""
    likeliest = tl.exp((best - peak) * inverse)  # 0 of an empty group
    masses = sums * likeliest
    allowed = (1.0 - p) * tl.sum(masses, axis=0) * 0.999
    lowest = tl.full([], 0.0, dtype=tl.float32)
    deepest = tl.full([], _DEEPEST, dtype=tl.float32)
    for _ in range(10):
        depth = (lowest + deepest) * 0.5
        bound = tl.exp(-depth)
        rest = tl.minimum(masses - likeliest, (GROUP - 1) * bound)
        is_enough = tl.sum(tl.where(likeliest < bound, masses, rest), axis=0) <= allowed
        deepest = tl.where(is_enough, depth, deepest)
        lowest = tl.where(is_enough, lowest, depth)
    # A hair deeper, for the sums above and the comparison below do not round alike.
    bound = peak - (deepest + 0.01) * temperature
    return tl.where(deepest < _DEEPEST, bound, float("-inf"))
