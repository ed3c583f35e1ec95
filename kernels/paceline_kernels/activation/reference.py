"""The gates of an MLP in plain torch: the ground truth."""

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def silu_mul(x: Tensor) -> Tensor:  # [tokens, 2 * features] -> [tokens, features]
    """Multiply the second half of each row by the SiLU of the first."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_mul(x: Tensor) -> Tensor:  # [tokens, 2 * features] -> [tokens, features]
    """Multiply the second half of each row by the GELU of the first, in its tanh approximation."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
