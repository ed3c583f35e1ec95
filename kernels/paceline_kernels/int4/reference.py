"""A matrix product with a weight of 4 bits, in plain torch: the ground truth."""

import torch
from torch import Tensor

from paceline_kernels.int4.layout import group_size, scales_of, values_of, zeros_of


def int4_linear(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [blocks, out, 16] int32: eight values of 4 bits a word, see `layout`
    groups: Tensor,  # [groups, out] int32: scale and zero point of each group, see `layout`
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [rows, out]
    """Multiply by `(values - zeros) * scales`, and add the bias where there is one."""
    y = x @ dequantize(weight, groups, x.shape[1], x.dtype).t()
    return y if bias is None else y + bias


def dequantize(weight: Tensor, groups: Tensor, num_in: int, dtype: torch.dtype) -> Tensor:
    """Give the weight [out, in] in a float type."""
    size = group_size(num_in, len(groups))
    zeros, scales = (
        each.repeat_interleave(size, dim=0).t() for each in (zeros_of(groups), scales_of(groups))
    )
    return (
        (values_of(weight, num_in) - zeros) * scales.to(torch.promote_types(dtype, torch.float32))
    ).to(dtype)
