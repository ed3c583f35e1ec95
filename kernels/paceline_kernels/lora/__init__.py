"""What adapters (LoRA) add to a product: each token its own adapter, or none."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.lora.reference import add_adapters as reference_add_adapters

add_adapters = by_device(reference_add_adapters)

__all__ = ["add_adapters", "reference_add_adapters"]
