"""Where a model begins: rows of the embedding, and the first norm of them."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.embedding.reference import embed_rms_norm as reference_embed_rms_norm

embed_rms_norm = by_device(reference_embed_rms_norm)

__all__ = ["embed_rms_norm", "reference_embed_rms_norm"]
