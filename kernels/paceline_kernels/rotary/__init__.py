"""Everything between the QKV projection and attention, in one pass."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.rotary.reference import rope_and_store_kv as reference_rope_and_store_kv

rope_and_store_kv = by_device(reference_rope_and_store_kv)

__all__ = ["reference_rope_and_store_kv", "rope_and_store_kv"]
