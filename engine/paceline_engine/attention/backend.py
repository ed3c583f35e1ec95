"""How a device attends over the paged KV cache: the port, and the CPU's choice behind it."""

from typing import Protocol

import torch

from paceline_engine.attention.native_attention import NativeAttention, serves
from paceline_engine.attention.reference_attention import ReferenceAttention
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.decoder import Attention
from paceline_engine.model.layers.rotary import Rotations
from paceline_engine.model.ops import Ops
from paceline_kernels.cpu import NativeOps


class AttentionBackend(Protocol):
    """Holds the KV cache of one model on one device."""

    def plan(self, step: StepTensors) -> Attention:
        """Prepare once what every layer of the step shares."""
        ...


def keeps_pairs(config: ModelConfig, ops: Ops, dtype: torch.dtype, block_size: int) -> bool:
    """Tell whether a KV cache in this type is to hold pairs, for compiled attention."""
    is_native = isinstance(ops, NativeOps) and dtype == torch.bfloat16
    return is_native and serves(config, dtype, block_size)


def cpu_attention(
    config: ModelConfig, ops: Ops, kv: KvTensors, tables: Rotations, dtype: torch.dtype
) -> AttentionBackend:
    """Choose compiled attention where it serves the model's heads in this type, and the cache."""
    has_cache = kv.is_paired or kv.keys[0].dtype != torch.bfloat16
    if isinstance(ops, NativeOps) and has_cache and serves(config, dtype, kv.block_size):
        return NativeAttention(config, ops, kv, tables, dtype)
    return ReferenceAttention(config, kv, tables)
