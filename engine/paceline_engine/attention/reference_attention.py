"""Attention on a CPU without compiled ops: the kernels' references, over short chunks of prompts.

It serves a CPU without a C compiler, and models that the compiled attention does not know. On one
core a step of the embedded model takes 0.7 to 1.14 times as long as it did with attention in torch
over gathered blocks of grouped rows, which was 300 lines more (1 to 16 decodes behind 128 to 2000
tokens, prompts of 256).
"""

from dataclasses import replace

import torch

from paceline_engine.attention.kernel_attention import KernelAttention, KernelStep
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.layers.rotary import Rotations

_QUERIES = 128
"""Queries of a prompt at a time: the reference keeps a score for each query and key."""


class ReferenceAttention:
    """Implements `AttentionBackend` in any type, for any shape of heads."""

    def __init__(self, config: ModelConfig, kv: KvTensors, rotations: Rotations) -> None:
        self._attention = KernelAttention(config, kv, rotations)

    def plan(self, step: StepTensors) -> KernelStep:
        """See `AttentionBackend`."""
        return self._attention.plan(_cut(step))


def _cut(step: StepTensors) -> StepTensors:
    """Cut each prompt's chunk into shorter ones, one behind the other."""
    rows, bounds = list(range(step.num_decodes)), list(range(step.num_decodes + 1))
    chunks: list[tuple[int, int]] = []
    for row, (num_tokens, context) in enumerate(step.chunks, start=step.num_decodes):
        for first in range(0, num_tokens, _QUERIES):
            end = min(first + _QUERIES, num_tokens)
            rows.append(row)
            bounds.append(bounds[-1] + end - first)
            chunks.append((end - first, context - num_tokens + end))
    contexts = torch.tensor([context for _, context in chunks], dtype=torch.int32)
    return replace(
        step,
        block_table=step.block_table[rows],
        bounds=torch.tensor(bounds, dtype=torch.int32),
        context_lens=torch.cat((step.context_lens[: step.num_decodes], contexts)),
        chunks=tuple(chunks),
    )
