"""Products of few rows in plain torch: the ground truth."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from paceline_kernels.activation.reference import gelu_tanh_mul, silu_mul

MAX_ROWS = 128
ARRIVALS = 4096
"""Counters that launches one behind the other may share."""
Gate = Literal["silu", "gelu_tanh"]


class RowNorm(NamedTuple):
    """An RMSNorm of rows whose squares are added up already."""

    weight: Tensor  # [in]
    squares: Tensor  # [any, rows] float32: each row's sum of squares is the sum of a column
    eps: float


def row_product(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [out, in]; gate, then up, where there is a gate
    bias: Tensor | None = None,  # [out]
    norm: RowNorm | None = None,
    gate: Gate | None = None,
    *,
    arrived: Tensor | None = None,  # noqa: ARG001 - the kernel's
) -> Tensor:  # [rows, out]; with a gate half of that
    """Return `gate(norm(x) weight^T + bias)`, rounded where ops of their own would round.

    `arrived` [ARRIVALS] int32, all 0 before and after: of one stream. None: the launcher's.
    """
    y = _product(x if norm is None else _normed(x, norm), weight, bias)
    if gate is None:
        return y
    return silu_mul(y) if gate == "silu" else gelu_tanh_mul(y)


def add_row_product(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [out, in]
    residual: Tensor,  # [rows, out]
    *,
    arrived: Tensor | None = None,  # noqa: ARG001 - the kernel's
) -> tuple[Tensor, Tensor]:  # [rows, out], [any, rows] float32
    """Return `x weight^T + residual`, and what a norm of it needs: sums of its squares."""
    new_residual = _product(x, weight, None) + residual
    return new_residual, _wide(new_residual).square().sum(dim=1)[None, :]


def _normed(x: Tensor, norm: RowNorm) -> Tensor:
    """Norm as `rms_norm` does: rounded to the weight's type, scaled, rounded to x's."""
    wide = _wide(x)
    inverse_rms = torch.rsqrt(norm.squares.to(wide.dtype).sum(dim=0) / x.shape[1] + norm.eps)
    return ((wide * inverse_rms[:, None]).to(norm.weight.dtype) * norm.weight).to(x.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
