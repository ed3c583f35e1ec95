"""Torch's own attention for whole prompts, beside the reference."""

import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from paceline_engine.attention.prefill import sdpa
from paceline_engine.attention.prefill.prompts import LayerCache, PromptChunk, ScoreRules
from paceline_engine.attention.prefill.sdpa import (
    NoFastAttentionError,
    are_whole,
    sdpa_prefill,
    serves_layer,
)
from paceline_kernels.fp8 import quantize_heads
from paceline_kernels.paged_kv.gathered import gathered
from paceline_testing.prefill import a_cache, attended, prompts_of, some_queries


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    num_kv=st.integers(1, 3),
    group=st.integers(1, 5),
    size=st.sampled_from([8, 16, 20, 64]),
    padding=st.integers(0, 3),
)
def test_torchs_attention_is_the_reference(
    lengths: list[int], num_kv: int, group: int, size: int, padding: int
) -> None:
    """Whatever the heads share, however the prompts lie: in float64, to the last digits."""
    cache = a_cache(60, num_kv, size, torch.float64)
    prompts = prompts_of([(length, length) for length in lengths], 60, padding)
    q = some_queries(sum(lengths) + padding, num_kv * group, size, torch.float64)

    seen = sdpa_prefill(q, cache, prompts, ScoreRules(0.3))

    wanted = attended(q, cache, prompts, ScoreRules(0.3))
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    chunks=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 30)), min_size=1, max_size=5
    ).filter(lambda chunks: any(before for _, before in chunks)),
    num_kv=st.integers(1, 3),
    group=st.integers(1, 5),
    size=st.sampled_from([8, 16, 20, 64]),
    padding=st.integers(0, 3),
)
def test_later_chunks_see_all_that_is_before_them(
    chunks: list[tuple[int, int]], num_kv: int, group: int, size: int, padding: int
) -> None:
    """Beside whole prompts, and alone; each token sees none of those after it."""
    cache = a_cache(80, num_kv, size, torch.float64)
    prompts = prompts_of([(tokens, before + tokens) for tokens, before in chunks], 80, padding)
    q = some_queries(prompts.num_tokens + padding, num_kv * group, size, torch.float64)

    seen = sdpa_prefill(q, cache, prompts, ScoreRules(0.3))

    wanted = attended(q, cache, prompts, ScoreRules(0.3))
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=1e-10)


def test_contexts_are_gathered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer is that of one prompt, however many are in the step."""
    held: list[weakref.ref[Tensor]] = []
    most: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        most.append(sum(each() is not None for each in held))
        k, v = gathered(*args, **kwargs)
        held.extend(map(weakref.ref, (k, v)))
        return k, v

    monkeypatch.setattr(sdpa, "gathered", counted)
    prompts = prompts_of([(3, 20), (2, 9), (5, 30)], 80)
    q = some_queries(10, 2, 16, torch.float32)

    sdpa_prefill(q, a_cache(80), prompts, ScoreRules(1.0))

    assert most == [0, 0, 0]


def test_a_chunk_behind_others_is_not_whole() -> None:
    """Behind a shared prefix, or behind the prompt's first chunk: its context is gathered."""
    assert are_whole((PromptChunk(7, 7), PromptChunk(3, 3)))
    assert not are_whole((PromptChunk(7, 7), PromptChunk(3, 4)))


def test_it_serves_neither_windows_nor_caps_nor_fp8() -> None:
    """Torch's fast ones have none of them, and the slow one writes all scores to memory."""
    cache = a_cache(4)
    codes, exponents = quantize_heads(cache.keys)

    assert serves_layer(cache, ScoreRules(1.0))
    assert not serves_layer(cache, ScoreRules(1.0, window=8))
    assert not serves_layer(cache, ScoreRules(1.0, softcap=50.0))
    assert not serves_layer(LayerCache(codes, codes, (exponents, exponents)), ScoreRules(1.0))


@pytest.mark.parametrize(
    ("says", "is_refusal"),
    [("No available kernel. Aborting execution.", True), ("CUDA error: unspecified", False)],
)
def test_heads_that_no_fast_one_knows_are_a_refusal(
    monkeypatch: pytest.MonkeyPatch, says: str, is_refusal: bool
) -> None:
    """On such a GPU, or in such a type: nothing is wrong. Anything else that torch raises is."""

    def refuses(*_arguments: object, **_options: object) -> None:
        raise RuntimeError(says)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", refuses)
    cache, prompts = a_cache(4), prompts_of([(3, 3)], 4)

    with pytest.raises(NoFastAttentionError if is_refusal else RuntimeError):
        sdpa_prefill(some_queries(3, 2, 16, torch.float32), cache, prompts, ScoreRules(1.0))
