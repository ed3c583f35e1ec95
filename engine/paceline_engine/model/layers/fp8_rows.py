"""Rows in FP8, between the op that quantises them and the product that takes them."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

import paceline_kernels
from paceline_kernels.fp8 import CODES


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """`codes * scales`, row by row."""

    codes: Tensor  # [rows, columns] float8_e4m3fn
    scales: Tensor  # [rows] float32
    dtype: torch.dtype
    """The type of the values that were quantised, and of products with them."""


def quantized(x: Tensor) -> Fp8Rows:  # [rows, columns]
    """Quantise rows that are in memory."""
    return Fp8Rows(*paceline_kernels.quantize_rows(x), x.dtype)


def multiply(rows: Fp8Rows, values: Tensor, scales: Tensor) -> Tensor:
    """Return rows times weights [out, columns] with a scale for each output: [rows, out].

    Sums are kept in float32: Hopper's faster ones have 14 bits, too few for long rows.
    """
    if values.device.type == "cpu" and not _cpu_scales_rows():
        return multiply_then_scale(rows, values, scales)
    return _product(rows.codes, values, rows.scales[:, None], scales[None, :], rows.dtype)


def multiply_then_scale(rows: Fp8Rows, values: Tensor, scales: Tensor) -> Tensor:
    """Return the same from a product with one scale for all: torch's on a CPU until 2.11."""
    one = torch.ones((), device=values.device)
    sums = _product(rows.codes, values, one, one, torch.float32)
    return sums.mul_(rows.scales[:, None]).mul_(scales).to(rows.dtype)


def _product(
    codes: Tensor, values: Tensor, scale: Tensor, weight_scale: Tensor, dtype: torch.dtype
) -> Tensor:
    y: Tensor = torch.ops.aten._scaled_mm(  # noqa: SLF001 - the only product of FP8 that torch has had since 2.11
        codes,
        values.t(),
        scale_a=scale,
        scale_b=weight_scale,
        out_dtype=dtype,
        use_fast_accum=False,
    )
    return y


@functools.cache
def _cpu_scales_rows() -> bool:
    codes, scales = torch.zeros(16, 16, dtype=CODES), torch.ones(16)
    try:
        _product(codes, codes, scales[:, None], scales[None, :], torch.float32)
    except RuntimeError:
        return False
    return True


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Fp8Rows, Tensor]:
    """See `Ops`; the norm is rounded to its type before codes are made of it."""
    codes, scales, total = paceline_kernels.add_rms_norm_fp8(x, residual, weight, eps)
    return Fp8Rows(codes, scales, x.dtype), total


def silu_mul(x: Tensor) -> Fp8Rows:  # [rows, 2 * columns]
    """See `Ops`; rounded before codes are made of it."""
    return Fp8Rows(*paceline_kernels.silu_mul_fp8(x), x.dtype)


def gelu_tanh_mul(x: Tensor) -> Fp8Rows:  # [rows, 2 * columns]
    """See `Ops`; rounded before codes are made of it."""
    return Fp8Rows(*paceline_kernels.gelu_tanh_mul_fp8(x), x.dtype)
