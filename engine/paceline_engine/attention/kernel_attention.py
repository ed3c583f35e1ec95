"""Attention with the kernels of `paceline_kernels`: on a GPU, or their references elsewhere."""

from dataclasses import dataclass, field
from typing import NamedTuple

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

    def plan(self, step: StepTensors) -> "KernelStep":
        """Separate the step's decodes from its prompts."""
        decodes, bounds = step.num_decodes, step.bounds[step.num_decodes :]
        prompts = Prompts(
            tuple(PromptChunk(*chunk) for chunk in step.chunks),
            block_table=step.block_table[decodes:],
            cu_seqlens=bounds - decodes if len(bounds) > 1 else bounds,
            context_lens=step.context_lens[decodes:],
            slots=step.slots[decodes:],
            block_size=self.kv.block_size,
        )
        return KernelStep(
            self,
            step.positions,
            step.slots,
            Contexts(step.block_table[:decodes], step.context_lens[:decodes]),
            prompts,
            self.prefill.of_step(prompts.chunks),
            first_prompt=decodes,
        )


class Contexts(NamedTuple):
    """The keys and values that the last token of each of S sequences attends to."""

    block_table: Tensor  # [S, blocks] int32
    context_lens: Tensor  # [S] int32; 0 where there is no sequence


@dataclass(frozen=True, slots=True)
class KernelStep:
    """The plan of one step of T tokens; the layers run it one by one."""

    backend: KernelAttention
    positions: Tensor  # [T] int64
    slots: Tensor  # [T] int64
    decodes: Contexts
    """The contexts of the decodes: the step's first tokens, one per sequence."""
    prompts: Prompts
    prefill: PrefillAttention
    first_prompt: int
    """Index of the step's token from which the bounds of `prompts` count."""
    plans: dict[int | None, DecodePlan | None] = field(default_factory=dict)
    """The plan of the decodes by window, made when a layer first needs it."""

    def attend(
        self, layer: int, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """See `paceline_engine.model.decoder.Attention`."""
        config = self.backend.config
        window = config.windows[layer]
        keys, values = self.backend.kv.keys[layer], self.backend.kv.values[layer]
        exponents = self.backend.kv.exponents(layer)
        q = rope_and_store_kv(
            qkv,
            self.positions,
            self.backend.rotations.of(window),
            self.slots,
            keys,
            values,
            num_q_heads=config.num_q_heads,
            num_kv_heads=config.num_kv_heads,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=config.norm_eps,
            exponents=exponents,
        )
        out = torch.empty_like(q)
        rules = ScoreRules(config.score_scale, window, config.attention_softcap)
        # Decodes first: a graph launches for the most decodes there can be. Surplus rows get zeros,
        # which the prompts then overwrite.
        if split := len(self.decodes.context_lens):
            paged_decode_attention(
                q[:split],
                keys,
                values,
                *self.decodes,
                rules.scale,
                rules.window,
                rules.softcap,
                exponents,
                plan=self._plan(window, q, keys),
                out=out[:split],
            )
        if len(self.prompts.context_lens):
            prompts_out = out[self.first_prompt :]
            cache = LayerCache(keys, values, exponents)
            given = self.prefill(q[self.first_prompt :], cache, self.prompts, rules, prompts_out)
            if given is not prompts_out:
                prompts_out.copy_(given)
        return out.flatten(1)

    def _plan(self, window: int | None, q: Tensor, keys: Tensor) -> DecodePlan | None:
        """Plan the decodes' work once for all layers with this window."""
        if window not in self.plans:
            lens = self.decodes.context_lens
            self.plans[window] = plan_decode_attention(q, keys, lens, window)
        return self.plans[window]
