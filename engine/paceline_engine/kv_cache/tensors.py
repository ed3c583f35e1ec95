"""The KV memory itself, laid out as docs/kv-layout.md says."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.core.model_config import ModelConfig
from paceline_kernels.checks import Exponents
from paceline_kernels.cpu import fresh_zeros
from paceline_kernels.fp8 import CODES, EXPONENTS
from paceline_kernels.paged_kv.gathered import gathered


@dataclass(frozen=True, slots=True)
class KvTensors:
    """Keys and values of every layer, in blocks that any sequence may hold.

    Pairs are what compiled attention in bfloat16 reads (`paceline_kernels.cpu.NativeOps`): keys
    [num_blocks, num_kv_heads, head_size / 2, block_size, 2], values [num_blocks, num_kv_heads,
    block_size / 2, head_size, 2].
    """

    # Per layer [num_blocks, block_size, num_kv_heads, head_size], or pairs.
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    # For FP8, per layer [num_blocks, block_size, num_kv_heads]; none of any other type.
    key_exponents: tuple[Tensor, ...] = ()
    value_exponents: tuple[Tensor, ...] = ()
    is_paired: bool = False

    @property
    def block_size(self) -> int:
        """Count the tokens of one block."""
        return self.keys[0].shape[3 if self.is_paired else 1]

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Return every tensor, each [num_blocks, ...]: together they hold all of a block."""
        return (*self.keys, *self.values, *self.key_exponents, *self.value_exponents)

    def exponents(self, layer: int) -> Exponents:
        """Return the exponents of a layer's keys and values; None unless they are FP8."""
        if not self.key_exponents:
            return None
        return self.key_exponents[layer], self.value_exponents[layer]

    def gathered(self, layer: int, blocks: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Copy some blocks [P] of K and V: each [P, block_size, num_kv_heads, head_size].

        Not of pairs.
        """
        exponents = self.exponents(layer)
        return gathered(self.keys[layer], self.values[layer], blocks, exponents, dtype=dtype)


def allocate(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    is_paired: bool = False,
) -> KvTensors:
    """Take the memory. It is zeroed: masked reads of unwritten slots must stay finite."""
    heads = (num_blocks, block_size, config.num_kv_heads)
    shape = (*heads, config.head_size)

    def per_layer(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
        return tuple(_zeros(shape, device, dtype) for _ in range(config.num_layers))

    if is_paired:
        blocks, size = (num_blocks, config.num_kv_heads), config.head_size
        keys = per_layer((*blocks, size // 2, block_size, 2), dtype)
        values = per_layer((*blocks, block_size // 2, size, 2), dtype)
        return KvTensors(keys, values, is_paired=True)
    keys, values = per_layer(shape, dtype), per_layer(shape, dtype)
    if dtype != CODES:
        return KvTensors(keys, values)
    return KvTensors(keys, values, per_layer(heads, EXPONENTS), per_layer(heads, EXPONENTS))


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    if device.type == "cpu":
        return fresh_zeros(shape, dtype)
    return torch.zeros(shape, device=device, dtype=dtype)
