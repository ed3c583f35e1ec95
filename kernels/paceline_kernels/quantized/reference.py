"""A matrix product with a weight in INT8 or FP8, in plain torch: the ground truth."""

from torch import Tensor


def quantized_linear(
    x: Tensor,  # [rows, in]
    weight: Tensor,  # [out, in] int8 or float8_e4m3fn
    scales: Tensor,  # [out] float32: what one unit of each output's weights is worth
    bias: Tensor | None = None,  # [out]
) -> Tensor:  # [rows, out]
    """Multiply by `weight * scales`, output by output, and add the bias where there is one."""
    y = (x @ weight.to(x.dtype).t()) * scales
    return (y if bias is None else y + bias).to(x.dtype)
