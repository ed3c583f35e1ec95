"""Numbers of one byte, E4M3 as the OCP's FP8 specification has it, in plain torch.

A head's codes in the KV cache share a power of two, kept as the MX formats keep it (E8M0: its
exponent plus 127, and 255 for what is not a number). It is the least that brings the largest value
within E4M3, so a value is off by half of its last of 4 bits at most, and what it is multiplied
back by is exact in every type.
"""

import torch
from torch import Tensor

CODES = torch.float8_e4m3fn
EXPONENTS = torch.uint8
LARGEST = 448.0

_NOT_A_NUMBER = 255
# 448 is 1.75 * 2^8: a largest value beyond 1.75 of its own power of two needs the next one.
_BEYOND_1_75 = 0x1FFFFF
_LARGEST_EXPONENT = 8
_MANTISSA_BITS = 23


def widen(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """Return each code's value; the NaN code is not handled, as nothing here writes it.

    E4M3's bits are those of a float16 that is 2^8 times smaller, which converts at the width of
    the machine: 0.28 ns a value on one core (Zen 4), where torch's own conversion took 4.5.
    """
    if codes.device.type != "cpu":
        return codes.to(dtype)
    bits = codes.view(torch.int8).to(torch.int16)
    bits <<= 7
    bits &= ~0x4000  # the sign stood there too
    return bits.view(torch.float16).to(dtype).mul_(256.0)


def quantize_heads(heads: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., head_size] and exponents [...] of heads [..., head_size]."""
    wide = heads.to(torch.promote_types(heads.dtype, torch.float32))
    largest = wide.abs().amax(dim=-1).float()
    exponents = (largest.view(torch.int32) + _BEYOND_1_75) >> _MANTISSA_BITS
    exponents = (exponents - _LARGEST_EXPONENT).clamp(min=1)
    inverse = ((254 - exponents) << _MANTISSA_BITS).view(torch.float32)
    exponents = exponents.masked_fill(~largest.isfinite(), _NOT_A_NUMBER)
    return (wide * inverse[..., None]).to(CODES), exponents.to(EXPONENTS)


def dequantize_heads(codes: Tensor, exponents: Tensor, dtype: torch.dtype) -> Tensor:
    """Give the heads [..., head_size] again; one that held no number is NaN throughout."""
    scales = exponents.view(torch.float8_e8m0fnu).to(dtype)
    return widen(codes, dtype).mul_(scales[..., None])
