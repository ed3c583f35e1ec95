"""Attention of prompt chunks of several sequences over their paged KV."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.prefill_attention.reference import (
    paged_prefill_attention as reference_paged_prefill_attention,
)

paged_prefill_attention = by_device(reference_paged_prefill_attention)

__all__ = ["paged_prefill_attention", "reference_paged_prefill_attention"]
