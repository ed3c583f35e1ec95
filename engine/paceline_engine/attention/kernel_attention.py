"""Attention with the kernels of `paceline_kernels`: on a GPU, or their references elsewhere."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PrefillAttention,
    PromptChunk,
    Prompts,
    ScoreRules,
)
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.layers.rotary import Rotations
from paceline_kernels import paged_decode_attention, rope_and_store_kv


class KernelAttention:
    """The GPU's `AttentionBackend`."""

    def __init__(
        self,
        config: ModelConfig,
        kv: KvTensors,
        rotations: Rotations,
        prefill: PrefillChoice | None = None,
    ) -> None:
        self.config = config
        self.kv = kv
        self.rotations = rotations
        self.prefill = prefill or PrefillChoice()

    def plan(self, step: StepTensors, into: Tensor | None = None) -> "KernelStep":
        """Part decodes from prompts; `into` [T, num_q_heads * head_size] takes each layer's result.

        Without it each layer's result is a new tensor.
        """
        decodes, bounds = step.num_decodes, step.bounds[step.num_decodes :]
        prompts = Prompts(
            tuple(PromptChunk(*chunk) for chunk in step.chunks),
            block_table=step.block_table[decodes:],
            cu_seqlens=bounds - decodes if len(bounds) > 1 else bounds,
            context_lens=step.context_lens[decodes:],
            slots=step.slots[decodes:],
            block_size=self.kv.block_size,
        )
        return KernelStep(self, step, prompts, self.prefill.of_step(prompts.chunks), into)


@dataclass(frozen=True, slots=True)
class KernelStep:
    """The plan of one step; the layers run it one by one."""

    backend: KernelAttention
    step: StepTensors
    prompts: Prompts
    prefill: PrefillAttention
    into: Tensor | None = None  # [T, num_q_heads * head_size]

    def attend(
        self, layer: int, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """See `paceline_engine.model.decoder.Attention`."""
        config, step = self.backend.config, self.step
        window = config.windows[layer]
        keys, values = self.backend.kv.keys[layer], self.backend.kv.values[layer]
        exponents = self.backend.kv.exponents(layer)
        q = rope_and_store_kv(
            qkv,
            step.positions,
            self.backend.rotations.of(window),
            step.slots,
            keys,
            values,
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=config.norm_eps,
            exponents=exponents,
        )
        split, scale, softcap = step.num_decodes, config.score_scale, config.attention_softcap
        parts = []
        if split:
            parts.append(
                paged_decode_attention(
                    q[:split],
                    keys,
                    values,
                    step.block_table[:split],
                    step.context_lens[:split],
                    scale,
                    window,
                    softcap,
                    exponents,
                )
            )
        if split < len(q):
            cache = LayerCache(keys, values, exponents)
            rules = ScoreRules(scale, window, softcap)
            parts.append(self.prefill(q[split:], cache, self.prompts, rules))
        if self.into is None:
            return torch.cat(parts).flatten(1)
        torch.cat(parts, out=self.into.view(q.shape))
        return self.into
