"""What adapters add to a product, in plain torch: the ground truth."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor


def add_adapters(
    y: Tensor,  # [tokens, out]: the product itself; changed
    x: Tensor,  # [tokens, in]
    down: Tensor,  # [adapters, parts * rank, in]
    up: Tensor,  # [adapters, out, rank]
    adapters: Tensor,  # [tokens] int64: each token's adapter; -1 for none
    ends: Sequence[int],  # [parts]: where the outputs of each part end, the last at `out`
) -> Tensor:  # [tokens, out]
    """Add `(x down^T) up^T` of its own adapter to each token, part by part; return `y`."""
    rank = up.shape[2]
    for adapter in range(len(up)):
        rows = (adapters == adapter).nonzero().flatten()
        if not len(rows):
            continue
        low = x[rows] @ down[adapter].t()  # [rows, parts * rank]
        bounds = (0, *ends)
        for part, (first, end) in enumerate(pairwise(bounds)):
            own = low[:, part * rank : (part + 1) * rank]
            y[rows, first:end] += own @ up[adapter, first:end].t()
    return y
