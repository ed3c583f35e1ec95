"""The first op of a model: rows of the embedding, and their norm."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.embedding.reference import embed_rms_norm as reference_embed_rms_norm

embed_rms_norm = by_device(reference_embed_rms_norm)

__all__ = ["embed_rms_norm", "reference_embed_rms_norm"]
