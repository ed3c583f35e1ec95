"""The KV memory itself, laid out as docs/kv-layout.md says."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.model.config import ModelConfig
from paceline_kernels.cpu import prefer_huge_pages


@dataclass(frozen=True, slots=True)
class KvTensors:
    """Keys and values of every layer, in blocks that any sequence may hold."""

    keys: tuple[Tensor, ...]  # per layer [num_blocks, block_size, num_kv_heads, head_size]
    values: tuple[Tensor, ...]  # as keys

    @property
    def block_size(self) -> int:
        """Tokens in one block."""
        return self.keys[0].shape[1]


def allocate(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> KvTensors:
    """Take the memory. It is zeroed: masked reads of unwritten slots must stay finite."""
    shape = (num_blocks, block_size, config.num_kv_heads, config.head_size)

    def per_layer() -> tuple[Tensor, ...]:
        return tuple(_zeros(shape, device, dtype) for _ in range(config.num_layers))

    return KvTensors(keys=per_layer(), values=per_layer())


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    tensor = torch.empty(shape, device=device, dtype=dtype)
    if device.type == "cpu":
        prefer_huge_pages(tensor)
    return tensor.zero_()
