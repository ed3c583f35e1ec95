"""Embedding and first norm in plain torch: the ground truth."""

from torch import Tensor

from paceline_kernels.norm import reference_rms_norm


def embed_rms_norm(
    token_ids: Tensor,  # [tokens] int64
    embedding: Tensor,  # [vocab, hidden]
    weight: Tensor,  # [hidden]
    eps: float,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # each [tokens, hidden]
    """Gather each token's row, times `scale`; return its norm and itself, the residual."""
    residual = scaled_rows(token_ids, embedding, scale)
    return reference_rms_norm(residual, weight, eps), residual


def scaled_rows(token_ids: Tensor, embedding: Tensor, scale: float) -> Tensor:  # [tokens, hidden]
    """Copy each token's row, times `scale`."""
    rows = embedding[token_ids]
    return rows if scale == 1.0 else rows.mul_(scale)
