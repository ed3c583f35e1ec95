"""Which attention a model gets on a CPU: the compiled one where it can be had, else torch's."""

import torch

from paceline_engine.attention.attention import AttentionBackend
from paceline_engine.attention.cpu_attention import CpuAttention
from paceline_engine.attention.native_attention import NativeAttention, serves
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.decoder import Ops
from paceline_engine.model.layers.rotary import Rotations
from paceline_kernels.cpu import NativeOps


def cpu_attention(
    config: ModelConfig, ops: Ops, kv: KvTensors, tables: Rotations, dtype: torch.dtype
) -> AttentionBackend:
    """Compiled if the elementwise ops are, which means a compiler and float32."""
    if isinstance(ops, NativeOps) and serves(config):
        return NativeAttention(config, ops, kv, tables)
    return CpuAttention(config, ops, kv, tables.to(dtype))
