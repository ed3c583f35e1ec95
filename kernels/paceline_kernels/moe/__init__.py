"""A mixture of experts: routing each token, and computing its experts' outputs."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.moe.reference import expert_product as reference_expert_product
from paceline_kernels.moe.reference import fused_experts as reference_fused_experts
from paceline_kernels.moe.reference import route_experts as reference_route_experts
from paceline_kernels.moe.reference import sort_slots as reference_sort_slots

fused_experts = by_device(reference_fused_experts)
route_experts = by_device(reference_route_experts)

__all__ = [
    "fused_experts",
    "reference_expert_product",
    "reference_fused_experts",
    "reference_route_experts",
    "reference_sort_slots",
    "route_experts",
]
