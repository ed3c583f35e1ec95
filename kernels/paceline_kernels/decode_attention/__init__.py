"""Attention of one new token per sequence over its paged KV."""

from paceline_kernels.decode_attention.reference import (
    DecodePlan,
)
from paceline_kernels.decode_attention.reference import (
    paged_decode_attention as reference_paged_decode_attention,
)
from paceline_kernels.decode_attention.reference import (
    plan_decode_attention as reference_plan_decode_attention,
)
from paceline_kernels.dispatch import by_device

paged_decode_attention = by_device(reference_paged_decode_attention)
plan_decode_attention = by_device(reference_plan_decode_attention)

__all__ = [
    "DecodePlan",
    "paged_decode_attention",
    "plan_decode_attention",
    "reference_paged_decode_attention",
    "reference_plan_decode_attention",
]
