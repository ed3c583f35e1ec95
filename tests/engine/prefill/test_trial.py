"""SDPA that is wrong on some GPU is found to be before it serves anybody."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_engine.attention.prefill import trial
from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PrefillAttention,
    PromptChunk,
    Prompts,
    ScoreRules,
)
from paceline_engine.attention.prefill.sdpa import NoFastAttentionError
from paceline_engine.attention.prefill.trial import Fault, fault_of, tolerance
from paceline_engine.attention.prefill.trial_steps import TrialCache, TrialStep, ragged_steps
from paceline_engine.errors import BadSettings
from paceline_testing.prefill import a_cache, attended, kernel_double, prompts_of, some_queries

TRIAL = TrialCache(a_cache(), num_q_heads=4)


def found(sdpa: PrefillAttention, trial_cache: TrialCache = TRIAL, behind: int = 0) -> Any:
    return fault_of(sdpa, kernel_double, ragged_steps(trial_cache, behind), ScoreRules(0.25))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_one_that_rounds_otherwise_is_right(dtype: torch.dtype) -> None:
    """The output of float64, rounded once: as near to ours as another can be expected to come."""

    def exactly(
        q: Tensor,
        cache: LayerCache,
        prompts: Prompts,
        rules: ScoreRules,
        _out: Tensor | None = None,
        /,
    ) -> Tensor:
        wide = LayerCache(cache.keys.double(), cache.values.double(), None)
        return attended(q.double(), wide, prompts, rules).to(dtype)

    assert found(exactly, TrialCache(a_cache(dtype=dtype), num_q_heads=4)) is None


def with_table(prompts: Prompts, table: Tensor) -> Prompts:
    return Prompts(
        prompts.chunks, table, prompts.cu_seqlens, prompts.context_lens, prompts.slots, 4
    )


def of_context(prompts: Prompts, context_lens: Tensor) -> Prompts:
    return Prompts(
        prompts.chunks, prompts.block_table, prompts.cu_seqlens, context_lens, prompts.slots, 4
    )


def forgets_the_first_key(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    keys = cache.keys.clone()
    keys[prompts.block_table[:, 0].long(), 0] = 0
    return attended(q, LayerCache(keys, cache.values, None), prompts, rules)


def mistakes_each_scale(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    return attended(q, cache, prompts, ScoreRules(1.02 * rules.scale, rules.window, rules.softcap))


def swaps_two_pages(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    table = prompts.block_table.clone()
    table[:, [-2, -1]] = table[:, [-1, -2]]
    return attended(q, cache, with_table(prompts, table), rules)


def aligns_with_the_first_key(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    """As torch's `is_causal` does."""
    tokens = torch.tensor([chunk.tokens for chunk in prompts.chunks], dtype=torch.int32)
    return attended(q, cache, of_context(prompts, tokens), rules)


def gives_nan(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    out = attended(q, cache, prompts, rules)
    out[-5, 0, 0] = float("nan")
    return out


def writes_into_padding(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    out = attended(q, cache, prompts, rules)
    out[-1] = 1e-3
    return out


def shares_heads_otherwise(
    q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, _out: Tensor | None = None, /
) -> Tensor:
    return attended(q[:, [0, 2, 1, 3]], cache, prompts, rules)[:, [0, 2, 1, 3]]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (forgets_the_first_key, "a row differs"),
        (mistakes_each_scale, "a row differs"),
        (swaps_two_pages, "a row differs"),
        (shares_heads_otherwise, "a row differs"),
        (gives_nan, "a row differs from our kernel's by nan"),
        (writes_into_padding, "by nan of its length"),
        (lambda q, *_: q[:-1], "it raised ValueError: its output must be"),
        (lambda q, *_: q.double(), "it raised ValueError: its output must be"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_mistake_is_found(wrong: PrefillAttention, says: str, dtype: torch.dtype) -> None:
    """Each is one that a slip in what is handed over would make, and small."""
    fault = found(wrong, TrialCache(a_cache(dtype=dtype), num_q_heads=4))

    assert fault.level == logging.WARNING
    assert says in fault.reason


@pytest.mark.parametrize("wrong", [aligns_with_the_first_key, forgets_the_first_key])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_mistakes_behind_a_context_are_found(wrong: PrefillAttention, dtype: torch.dtype) -> None:
    """Whole prompts may be right all the same."""
    fault = found(wrong, TrialCache(a_cache(dtype=dtype), num_q_heads=4), behind=77)

    assert "chunks of 1, 15, 4, 257, 100 tokens at the end of 78, 15, 81, 257, 177" in fault.reason
    assert found(aligns_with_the_first_key) is None


def test_what_it_raises_is_told_in_a_line() -> None:
    """Our own kernel's output is not waited for."""

    def raises(*_arguments: Any) -> Tensor:
        raise TypeError("plan() got an unexpected keyword\nand so on")

    assert found(raises) == Fault(
        "on prompts of 1, 15, 4, 257, 100 tokens "
        "it raised TypeError: plan() got an unexpected keyword"
    )


def test_a_refusal_is_no_warning() -> None:
    """It knows itself best."""

    def refuses(*_arguments: Any) -> Tensor:
        raise NoFastAttentionError("no kernel")

    assert found(refuses) == Fault("no kernel", logging.INFO)


def test_a_gpu_that_is_broken_is_not_served_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal access each further answer may be wrong: who is to blame is named."""

    def breaks(*_arguments: Any) -> Tensor:
        raise RuntimeError("an illegal memory access was encountered")

    def is_dead(_device: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    class OnGpu(Tensor):
        device = torch.device("cuda")

    monkeypatch.setattr(torch.cuda, "synchronize", is_dead)
    step = TRIAL.step([PromptChunk(1, 1)])
    on_gpu = TrialStep(step.q.as_subclass(OnGpu), step.cache, step.prompts)

    with pytest.raises(BadSettings, match="Torch's attention left the GPU unusable"):
        fault_of(breaks, kernel_double, [on_gpu], ScoreRules(1.0))


def test_a_prompt_that_does_not_fit_is_not_tried() -> None:
    """A cache of 40 blocks holds no more of a real prompt either."""
    tried = list(ragged_steps(TrialCache(a_cache(40), num_q_heads=4)))

    assert max(chunk.context for step in tried for chunk in step.prompts.chunks) == 160
    behind = list(ragged_steps(TrialCache(a_cache(40), num_q_heads=4), behind=77))
    assert max(chunk.context for step in behind for chunk in step.prompts.chunks) == 160


def test_the_trials_cache_is_no_larger_than_it_says() -> None:
    """Beside a full GPU each byte counts; and no cache is larger than the model's own."""
    assert TrialCache(a_cache(5000), 4).num_tokens == 10_240
    assert TrialCache(a_cache(40), 4).num_tokens == 160


def test_prompts_are_laid_out_as_the_engine_does() -> None:
    """Each token's slot is where the table says; no block is in two prompts."""
    step = TRIAL.step([PromptChunk(9, 9), PromptChunk(5, 5)], padding=2)
    prompts = step.prompts

    assert step.q.shape == (16, 4, 16)
    assert prompts.slots[-2:].tolist() == [-1, -1]
    assert prompts.cu_seqlens.tolist() == [0, 9, 14]
    assert prompts.context_lens.tolist() == [9, 5]
    table = prompts.block_table
    assert len({*table[0, :3].tolist(), *table[1, :2].tolist()}) == 5
    positions = [*((0, i) for i in range(9)), *((1, i) for i in range(5))]
    assert prompts.slots[:14].tolist() == [
        int(table[row, i // 4]) * 4 + i % 4 for row, i in positions
    ]


def test_a_missing_key_among_many_is_more_than_rounding() -> None:
    """What the tolerance is made for: weights all equal, as flat as scores can be."""
    cache, prompts = a_cache(dtype=torch.bfloat16), prompts_of([(1, 300)], 1100)
    q = torch.zeros_like(some_queries(1, 4, 16, torch.bfloat16))
    without = of_context(prompts, prompts.context_lens - 1)

    seen = trial._rows_difference(
        attended(q, cache, without, ScoreRules(1.0)), attended(q, cache, prompts, ScoreRules(1.0))
    )

    assert float(seen.max()) > tolerance(torch.bfloat16)
