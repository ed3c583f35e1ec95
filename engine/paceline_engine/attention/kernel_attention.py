"""Attention with the kernels of `paceline_kernels`: on a GPU, or their references elsewhere."""

from dataclasses import dataclass, field

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
from paceline_kernels import (
    paged_decode_attention,
    plan_decode_attention,
    rope_and_store_kv,
)
from paceline_kernels.decode_attention import DecodePlan


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
    plans: dict[int | None, DecodePlan | None] = field(default_factory=dict)
    """Of the decodes, by window; made where a layer first asks."""

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
        out = torch.empty_like(q) if self.into is None else self.into.view(q.shape)
        rules = ScoreRules(config.score_scale, window, config.attention_softcap)
        split = step.num_decodes
        if split:
            paged_decode_attention(
                q[:split],
                keys,
                values,
                step.block_table[:split],
                step.context_lens[:split],
                rules.scale,
                rules.window,
                rules.softcap,
                exponents,
                plan=self._plan(window, q, keys),
                out=out[:split],
            )
        if split < len(q):
            prompts_out = out[split:]
            cache = LayerCache(keys, values, exponents)
            given = self.prefill(q[split:], cache, self.prompts, rules, prompts_out)
            if given is not prompts_out:
                prompts_out.copy_(given)
        return out.flatten(1) if self.into is None else self.into

    def _plan(self, window: int | None, q: Tensor, keys: Tensor) -> DecodePlan | None:
        """Share out the decodes' contexts once for all layers with this window."""
        if window not in self.plans:
            lens = self.step.context_lens[: self.step.num_decodes]
            self.plans[window] = plan_decode_attention(q, keys, lens, window)
        return self.plans[window]
