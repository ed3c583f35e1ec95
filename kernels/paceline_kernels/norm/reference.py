"""RMSNorm in plain torch: the ground truth."""

import torch
from torch import Tensor

from paceline_kernels.fp8_rows.reference import quantize_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:  # [tokens, hidden], [hidden]
    """Divide each row by its root mean square, round to the weight's type, then scale by it."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return ((wide * inverse_rms).to(weight.dtype) * weight).to(x.dtype)


def add_rms_norm(
    x: Tensor,  # [tokens, hidden]
    residual: Tensor,  # [tokens, hidden]
    weight: Tensor,  # [hidden]
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Add `x` to the residual stream; return the sum's norm and the sum, the new residual."""
    new_residual = x + residual
    return rms_norm(new_residual, weight, eps), new_residual


def add_rms_norm_fp8(
    x: Tensor,  # [tokens, hidden]
    residual: Tensor,  # [tokens, hidden]
    weight: Tensor,  # [hidden]
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the norm of the sum as codes and scales (`quantize_rows`), and the sum.

    The norm is rounded to the type of `x` first: the codes are those of both ops in turn.
    """
    normed, new_residual = add_rms_norm(x, residual, weight, eps)
    return *quantize_rows(normed), new_residual
