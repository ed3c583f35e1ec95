"""How a device attends over the paged KV cache: the port, and the CPU's choice behind it."""

from typing import Protocol

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


def cpu_attention(
    config: ModelConfig, ops: Ops, kv: KvTensors, tables: Rotations
) -> AttentionBackend:
    """Choose compiled attention where the ops are compiled and it serves the model's heads."""
    if isinstance(ops, NativeOps) and serves(config):
        return NativeAttention(config, ops, kv, tables)
    return ReferenceAttention(config, kv, tables)
