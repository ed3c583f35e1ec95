"""A step of decodes and prompts together, through the engine's attention."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from paceline_engine.attention import reference_attention
from paceline_engine.attention.backend import AttentionBackend
from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.attention.prefill.prompts import LayerCache, Prompts, ScoreRules
from paceline_engine.attention.prefill.sdpa import sdpa_prefill
from paceline_engine.attention.reference_attention import ReferenceAttention
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.kv_cache.tensors import allocate
from paceline_engine.model.layers.rotary import rotations
from paceline_testing.prefill import CONFIG

CPU = torch.device("cpu")
MODEL = replace(
    CONFIG, num_layers=4, head_size=64, hidden_size=256, max_len=64, windows=(None, 6) * 2
)
DECODES = ((1, 9), (1, 30))
WHOLE = ((7, 7), (21, 21), (1, 1))
LATER = ((7, 7), (11, 21), (1, 4))
"""Tokens and context."""
PADDING = 3


def a_step(prompts: tuple[tuple[int, int], ...]) -> StepTensors:
    sequences = (*DECODES, *prompts)
    blocks = torch.randperm(40, generator=torch.Generator().manual_seed(3)).view(5, 8)
    counts, lens = (torch.tensor(column) for column in zip(*sequences, strict=True))
    places = [
        (row, position)
        for row, (tokens, context) in enumerate(sequences)
        for position in range(context - tokens, context)
    ]
    slots = [int(blocks[row, at // 4]) * 4 + at % 4 for row, at in places]
    positions = [position for _, position in places]
    return StepTensors(
        num_decodes=2,
        token_ids=torch.zeros(len(places) + PADDING, dtype=torch.int64),
        positions=torch.tensor(positions + [0] * PADDING),
        slots=torch.tensor(slots + [-1] * PADDING),
        block_table=blocks.to(torch.int32),
        bounds=torch.cat([torch.zeros(1), counts.cumsum(0)]).to(torch.int32),
        context_lens=lens.to(torch.int32),
        chunks=prompts,
    )


def attended(make: Callable[..., AttentionBackend], step: StepTensors) -> list[Tensor]:
    """What each layer gives, of the same numbers."""
    kv = allocate(MODEL, 40, 4, device=CPU, dtype=torch.float16)
    generator = torch.Generator().manual_seed(4)
    for tensor in kv.all:
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    attention = make(MODEL, kv, rotations(MODEL, MODEL.max_len))
    with torch.inference_mode():
        planned = attention.plan(step)
        return [
            planned.attend(
                layer,
                torch.randn(len(step.positions), MODEL.qkv_size, generator=generator).half(),
                None,
                None,
            )
            for layer in range(MODEL.num_layers)
        ]


def test_prompts_beside_decodes_are_served_in_every_layer() -> None:
    """As by ours, in layers with windows and without; what pads the step is nobody's."""
    calls: list[ScoreRules] = []

    def counted(
        q: Tensor,
        cache: LayerCache,
        prompts: Prompts,
        rules: ScoreRules,
        _out: Tensor | None = None,
        /,
    ) -> Tensor:
        calls.append(rules)
        return sdpa_prefill(q, cache, prompts, rules)

    step = a_step(WHOLE)

    choice = PrefillChoice({0: True}, sdpa=counted)
    seen = attended(partial(KernelAttention, prefill=choice), step)

    wanted = attended(KernelAttention, step)
    for theirs, ours in zip(seen, wanted, strict=True):
        torch.testing.assert_close(theirs[:-PADDING], ours[:-PADDING], atol=2e-2, rtol=2e-2)
    assert [rules.window for rules in calls] == [None, None]


def test_prompts_cut_short_for_the_references_give_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No more scores at a time than fit, whatever the prompt's length."""
    monkeypatch.setattr(reference_attention, "_QUERIES", 4)
    step = a_step(LATER)

    seen = attended(ReferenceAttention, step)

    for cut, whole in zip(seen, attended(KernelAttention, step), strict=True):
        torch.testing.assert_close(cut[:-PADDING], whole[:-PADDING], atol=2e-3, rtol=2e-3)
