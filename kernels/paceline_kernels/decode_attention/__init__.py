"""Attention of one new token per sequence over its paged KV."""

from paceline_kernels.decode_attention.reference import (
    paged_decode_attention as reference_paged_decode_attention,
)
from paceline_kernels.dispatch import by_device

paged_decode_attention = by_device(reference_paged_decode_attention)

__all__ = ["paged_decode_attention", "reference_paged_decode_attention"]
