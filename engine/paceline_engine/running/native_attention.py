"""Attention on a CPU with the compiled ops: decodes read the blocks where they lie.

Prompts go through torch's own attention, which multiplies matrices better than a simple loop; only
their blocks are gathered.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.layers.rotary import Rotations
from paceline_engine.running.chunks import Prompt, attend_prompt, prompts_of
from paceline_engine.running.inputs import StepInputs
from paceline_kernels.cpu import LANES, MAX_HEADS, NativeOps


def serves(config: ModelConfig) -> bool:
    """Tell whether the compiled decode attention has this shape of heads, and no more to do."""
    has_shape = config.head_size % LANES == 0 and config.num_q_heads <= MAX_HEADS
    return has_shape and config.attention_softcap is None


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
        """Hand the arrays over, and cut the prompts as each window sees them."""
        return NativeStep(
            self,
            positions=torch.from_numpy(inputs.positions),
            slots=torch.from_numpy(inputs.slots),
            block_table=torch.from_numpy(inputs.block_table),
            context_lens=torch.from_numpy(inputs.context_lens),
            num_decodes=inputs.num_decodes,
            prompts={
                window: prompts_of(inputs, self.kv.block_size, window)
                for window in set(self.config.windows)
            },
        )


@dataclass(frozen=True, slots=True)
class NativeStep:
    """The plan of one step; the layers run it one by one."""

    backend: NativeAttention
    positions: Tensor  # [T]
    slots: Tensor  # [T]
    block_table: Tensor  # [S, P]
    context_lens: Tensor  # [S]
    num_decodes: int
    prompts: dict[int | None, list[Prompt]]  # by window

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
        q = qkv[:, :q_size].unflatten(1, (config.num_q_heads, config.head_size))
        for prompt in self.prompts[window]:
            gathered = keys.index_select(0, prompt.blocks), values.index_select(0, prompt.blocks)
            attend_prompt(config, prompt, q, gathered, out.view_as(q))
        return out
