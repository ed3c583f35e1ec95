"""The likeliest token of each row, or the sign that there is none."""

import torch
from torch import Tensor

NOT_A_TOKEN = -1
"""In place of a token: the logits of the row are not numbers."""

GREEDY_BELOW = 1e-4
"""A temperature below this is greedy: the division would leave the range of float32."""


def likeliest(logits: Tensor) -> Tensor:  # [rows, vocab] -> [rows]
    """Take the first of the largest logits."""
    best, tokens = logits.max(dim=-1)
    return torch.where(best.isfinite(), tokens, NOT_A_TOKEN)
