"""Rows in FP8, on their way from the op that makes them to the product that takes them."""

from dataclasses import dataclass

import torch
from torch import Tensor

import paceline_kernels


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """`codes * scales`, row by row."""

    codes: Tensor  # [rows, columns] float8_e4m3fn
    scales: Tensor  # [rows] float32
    dtype: torch.dtype
    """Of what they are codes of, and so of products with them."""


def quantized(x: Tensor) -> Fp8Rows:  # [rows, columns]
    """Make codes of what is in memory."""
    return Fp8Rows(*paceline_kernels.quantize_rows(x), x.dtype)


def multiply(rows: Fp8Rows, values: Tensor, scales: Tensor) -> Tensor:
    """Give rows times weights [out, columns] with a scale for each output: [rows, out].

    Sums are kept in float32: Hopper's faster ones have 14 bits, too few for long rows.
    """
    y: Tensor = torch.ops.aten._scaled_mm(  # noqa: SLF001 - the only product of FP8 that torch has had since 2.11
        rows.codes,
        values.t(),
        scale_a=rows.scales[:, None],
        scale_b=scales[None, :],
        out_dtype=rows.dtype,
        use_fast_accum=False,
    )
    return y


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
