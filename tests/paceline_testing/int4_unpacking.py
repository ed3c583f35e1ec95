"""A kernel that unpacks one block of weights of 4 bits and no more."""

import triton
import triton.language as tl

from paceline_kernels.int4 import kernel


@triton.jit
def unpack(words_ptr, zeros_ptr, out_ptr, place: tl.constexpr, dtype: tl.constexpr):
    """Write the bits of 32 inputs of 16 outputs, less the outputs' zero points."""
    word, output = tl.arange(0, 16)[None, :], tl.arange(0, 16)[:, None]
    words = tl.load(words_ptr + 16 * output + word)
    values = kernel._less_zero(words, tl.load(zeros_ptr + output), place, dtype)
    out_at = 32 * output + tl.arange(0, 32)[None, :]
    tl.store(out_ptr + out_at, values.to(tl.int16, bitcast=True))
