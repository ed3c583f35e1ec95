"""The gates of an MLP in plain torch: the ground truth."""

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from paceline_kernels.fp8_rows.reference import quantize_rows


def silu_mul(x: Tensor) -> Tensor:  # [tokens, 2 * features] -> [tokens, features]
    """Multiply the second half of each row by the SiLU of the first."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(x: Tensor) -> Tensor:  # [tokens, 2 * features] -> [tokens, features]
    """Multiply the second half of each row by the GELU of the first, in its tanh approximation."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def silu_mul_fp8(x: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, 2 * features]
    """Give `silu_mul` as codes [tokens, features] and scales [tokens]: `quantize_rows`."""
    return quantize_rows(silu_mul(x))


def gelu_tanh_mul_fp8(x: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, 2 * features]
    """Give `gelu_tanh_mul` as codes [tokens, features] and scales [tokens]: `quantize_rows`."""
    return quantize_rows(gelu_tanh_mul(x))
