"""Attention on a CPU with the compiled ops, which read the blocks where they lie."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.layers.rotary import Rotations
from paceline_engine.running.inputs import StepInputs
from paceline_kernels.cpu import LANES, MAX_GROUP, MAX_HEADS, NativeOps


def serves(config: ModelConfig) -> bool:
    """Tell whether the compiled attention has this shape of heads, and no more to do."""
    has_heads = config.num_q_heads <= MAX_HEADS
    has_group = config.num_q_heads <= MAX_GROUP * config.num_kv_heads
    has_size = config.head_size % LANES == 0
    return has_heads and has_group and has_size and config.attention_softcap is None


class NativeAttention:
    """An `AttentionBackend` in float32."""

    def __init__(
        self, config: ModelConfig, native: NativeOps, kv: KvTensors, tables: Rotations
    ) -> None:
        self.config = config
        self.native = native
        self.kv = kv
        self.tables = tables

    def plan(self, inputs: StepInputs) -> "NativeStep":
        """Hand the arrays over."""
        return NativeStep(
            self,
            positions=torch.from_numpy(inputs.positions),
            slots=torch.from_numpy(inputs.slots),
            block_table=torch.from_numpy(inputs.block_table),
            context_lens=torch.from_numpy(inputs.context_lens),
            cu_seqlens=torch.from_numpy(inputs.cu_seqlens),
            num_decodes=inputs.num_decodes,
        )


@dataclass(frozen=True, slots=True)
class NativeStep:
    """The plan of one step; the layers run it one by one."""

    backend: NativeAttention
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    block_table: Tensor  # [S, P]
    context_lens: Tensor  # [S]
    cu_seqlens: Tensor  # [S + 1]
    num_decodes: int

    def attend(
        self, layer: int, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """See `paceline_engine.model.decoder.Attention`; q is rotated in place."""
        config, kv, native = self.backend.config, self.backend.kv, self.backend.native
        keys, values, window = kv.keys[layer], kv.values[layer], config.windows[layer]
        norms = None if q_norm is None or k_norm is None else (q_norm, k_norm)
        native.rope_and_store_kv(
            qkv=qkv,
            positions=self.positions,
            slots=self.slots,
            cos_sin=self.backend.tables.of(window),
            norms=norms,
            eps=config.norm_eps,
            k_cache=keys,
            v_cache=values,
        )
        q_size = config.num_q_heads * config.head_size
        out = qkv.new_empty(len(qkv), q_size)
        if self.num_decodes:
            native.paged_decode_attention(
                qkv=qkv,
                num_q_heads=config.num_q_heads,
                k_cache=keys,
                v_cache=values,
                block_table=self.block_table,
                context_lens=self.context_lens,
                rows=self.num_decodes,
                out=out,
                scale=config.score_scale,
                window=window,
            )
        if self.num_decodes < len(self.context_lens):
            native.paged_prompt_attention(
                qkv=qkv,
                num_q_heads=config.num_q_heads,
                k_cache=keys,
                v_cache=values,
                block_table=self.block_table[self.num_decodes :],
                cu_seqlens=self.cu_seqlens[self.num_decodes :],
                context_lens=self.context_lens[self.num_decodes :],
                out=out,
                scale=config.score_scale,
                window=window,
            )
        return out
