"""Who attends for a step's prompts: our kernel or SDPA, by what was tried, timed or set."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_engine.attention.prefill.choice import PrefillChoice, choose
from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PrefillAttention,
    PromptChunk,
    Prompts,
    ScoreRules,
    our_prefill,
)
from paceline_engine.attention.prefill.sdpa import NoFastAttentionError, are_whole
from paceline_engine.attention.prefill.trial_steps import timed_laters
from paceline_engine.errors import BadSettings
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.prefill import (
    CONFIG,
    PrefillDouble,
    a_cache,
    attended,
    prompts_of,
    some_queries,
)

CLOCK = ManualClock()


def a_double(call_s: float | Callable[[int], float] = 1.0, **rest: Any) -> PrefillDouble:
    takes = call_s if callable(call_s) else lambda _length: call_s
    return PrefillDouble(CLOCK, takes, **rest)


def timed(ours: PrefillDouble, sdpa: PrefillAttention, **options: Any) -> PrefillChoice:
    chosen: dict[str, Any] = {
        "config": CONFIG,
        "cache": a_cache(),
        "max_tokens": 200,
        "max_context": 400,
        **options,
    }
    return choose(
        "auto",
        chosen["config"],
        chosen["cache"],
        chosen["max_tokens"],
        chosen["max_context"],
        sdpa=sdpa,
        ours=ours,
        seconds_of=ours.seconds_of,
    )


def is_sdpas(choice: PrefillChoice, *chunks: tuple[int, int]) -> bool:
    return choice.of_step(tuple(PromptChunk(*chunk) for chunk in chunks)) is not choice.ours


def test_the_mean_length_of_a_steps_prompts_decides() -> None:
    """Each prompt is a call of its own: many short ones are ours, whatever one long one is."""
    choice = PrefillChoice({64: False, 512: True, 2048: False})

    def is_torchs(*lengths: int) -> bool:
        return is_sdpas(choice, *((length, length) for length in lengths))

    assert not any(map(is_torchs, (63, 64, 511)))
    assert is_torchs(512)
    assert is_torchs(2047)
    assert is_torchs(1000, 30)
    assert not is_torchs(2048)
    assert not is_torchs(1000, 20)
    assert not is_torchs()


def test_later_chunks_are_ours_unless_they_were_timed() -> None:
    """Their contexts are gathered first; one such chunk is enough."""
    choice = PrefillChoice({0: True})

    assert is_sdpas(choice, (7, 7), (3, 3))
    assert not is_sdpas(choice, (7, 7), (3, 4))


LATERS = {
    PromptChunk(256, 2048): False,
    PromptChunk(256, 8192): True,
    PromptChunk(1024, 2048): True,
    PromptChunk(1024, 8192): False,
}


def test_tokens_and_the_longest_context_decide_of_later_chunks() -> None:
    """The mean of the tokens, as each chunk is a call; beyond what is gathered all is ours."""
    choice = PrefillChoice({0: True}, LATERS)

    assert not is_sdpas(choice, (255, 9000))
    assert not is_sdpas(choice, (300, 8191))
    assert is_sdpas(choice, (300, 8192))
    assert is_sdpas(choice, (300, 32_768))
    assert not is_sdpas(choice, (300, 32_769))
    assert is_sdpas(choice, (1024, 2048))
    assert is_sdpas(choice, (2040, 2048))
    assert is_sdpas(choice, (2000, 2000), (100, 2048))
    assert not is_sdpas(choice, (2000, 2000), (100, 1000))
    assert not is_sdpas(choice, (2000, 8192))
    assert is_sdpas(choice, (2000, 8192), (2, 3), (2, 9))


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([step.chunks[0] for step in timed_laters(8192, 32_768)]), st.booleans()
    ),
    st.integers(1, 8192),
    st.integers(2, 50_000),
    st.data(),
)
def test_no_chunk_gathers_more_than_the_largest(
    are_sdpas: dict[PromptChunk, bool], max_tokens: int, max_context: int, data: st.DataObject
) -> None:
    """Memory is measured with those: each is SDPA's, and whatever is SDPA's is no larger."""
    choice = PrefillChoice({}, are_sdpas)
    largest = choice.largest_gathers(max_tokens, max_context)

    context = data.draw(st.integers(2, max_context))
    tokens = data.draw(st.integers(1, min(max_tokens, context - 1)))
    if is_sdpas(choice, (tokens, context)):
        assert any(tokens <= one.tokens and context <= one.context for one in largest)
    for one in largest:
        assert is_sdpas(choice, one)
        assert one.tokens <= max_tokens
        assert one.tokens < one.context <= max_context


def test_the_faster_one_serves_each_length() -> None:
    """A gain of four per cent is noise."""
    ours = a_double(lambda length: 1.0 if length < 512 else 2.0)
    sdpa = a_double(lambda length: {64: 1.1, 128: 0.96, 256: 0.94}.get(length, 1.5))

    choice = timed(ours, sdpa, max_tokens=600)

    assert choice.is_sdpas == {64: False, 128: False, 256: True, 512: True}


def test_the_faster_one_serves_later_chunks() -> None:
    """Of each size that is timed; whole prompts are chosen apart."""
    ours = a_double()
    sdpa = a_double(lambda length: 0.5 if length == 1024 else 1.5)

    choice = timed(ours, sdpa, max_tokens=2000, max_context=4096)

    assert choice.are_laters_sdpas == {PromptChunk(256, 2048): False, PromptChunk(1024, 2048): True}
    assert [length for length, is_ in choice.is_sdpas.items() if is_] == [1024]


def test_sdpa_that_is_wrong_behind_a_context_serves_whole_prompts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that aligns its mask with the first key is right for whole prompts."""

    def is_wrong_behind(
        q: Tensor, cache: LayerCache, prompts: Prompts, rules: ScoreRules, out: Any = None, /
    ) -> Tensor:
        right = sdpa(q, cache, prompts, rules, out)
        return right if are_whole(prompts.chunks) else right * 1.1

    sdpa = a_double(0.5)
    choice = timed(a_double(), is_wrong_behind, max_context=4096)

    assert set(choice.is_sdpas.values()) == {True}
    assert not choice.are_laters_sdpas
    (warning,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert "later chunks without sdpa: on chunks of 1, 15, 4" in warning.getMessage()


def test_what_a_length_costs_that_was_never_seen_counts() -> None:
    """Prompts are of any length: who compiles for each is fast only when it is timed twice."""
    ours = a_double()

    chosen = [timed(ours, a_double(0.5, length_s=length_s)).is_sdpas for length_s in (0.01, 5.0)]

    assert [set(each.values()) for each in chosen] == [{True}, {False}]


def test_what_the_first_layer_pays_counts_once_a_step() -> None:
    """Compiling takes what some layers save: a model of 2 is ours, one of 32 is not."""
    ours = a_double()
    of_32 = replace(CONFIG, num_layers=32, windows=(None,) * 32)

    assert set(timed(ours, a_double(0.5, length_s=1.5)).is_sdpas.values()) == {False}
    assert set(timed(ours, a_double(0.5, length_s=1.5), config=of_32).is_sdpas.values()) == {True}


def test_trying_leaves_the_cache_as_it_was() -> None:
    """It holds what was computed while the engine warmed up."""
    cache = a_cache()
    before = cache.keys.clone(), cache.values.clone()

    timed(a_double(), a_double(0.5), cache=cache)

    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])


def test_a_small_cache_is_timed_as_far_as_it_goes() -> None:
    """A longer prompt will never be."""
    choice = timed(a_double(), a_double(0.5), cache=a_cache(40), max_tokens=8192)

    assert list(choice.is_sdpas) == [64, 128]


def test_sdpa_that_is_wrong_is_never_used(caplog: pytest.LogCaptureFixture) -> None:
    """However fast; one sentence says what was seen."""
    choice = timed(a_double(), a_double(0.1, spoil=lambda out: out * 1.1))

    assert not choice.is_sdpas
    (warning,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert "prompts without sdpa: " in warning.getMessage()
    assert "a row differs from our kernel's by 0.1 of its length" in warning.getMessage()


def test_sdpa_that_refuses_is_left_out_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """That is no fault: what is not there cannot be wrong."""
    caplog.set_level(logging.INFO)

    def refuses(_out: Tensor) -> Tensor:
        raise NoFastAttentionError("torch has no fast attention for such heads")

    choice = timed(a_double(), a_double(0.1, spoil=refuses))

    assert not choice.is_sdpas
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.INFO, "prompts without sdpa: torch has no fast attention for such heads"),
    ]


def never(_runs: object) -> float:
    raise AssertionError("nothing is to be timed")


@pytest.mark.parametrize("windows", [(None, None), (8, None)])
def test_what_is_set_is_not_timed(windows: tuple[int | None, ...]) -> None:
    """It is tried all the same."""
    config = replace(CONFIG, windows=windows)

    assert not choose("triton", config, a_cache(), 200, 400, seconds_of=never).is_sdpas
    choice = choose("sdpa", config, a_cache(), 200, 400, seconds_of=never)
    assert is_sdpas(choice, (1, 1))
    assert not is_sdpas(choice, (1, 2))


@pytest.mark.parametrize("changes", [{"windows": (8, 8)}, {"attention_softcap": 50.0}], ids=str)
def test_a_model_that_torch_cannot_serve_is_ours_or_refused(changes: dict[str, Any]) -> None:
    """Nothing is timed for nothing, and who asked for torch is told."""
    config = replace(CONFIG, **changes)

    assert not choose("auto", config, a_cache(), 200, 400, seconds_of=never).is_sdpas
    with pytest.raises(BadSettings, match=r"is sdpa, which serves none .* without a window"):
        choose("sdpa", config, a_cache(), 200, 400)


def test_what_is_set_and_wrong_is_refused() -> None:
    """Who asked for it must not get another's tokens unasked, nor wrong ones."""
    wrong = a_double(spoil=lambda out: out + 1)

    with pytest.raises(
        BadSettings, match="is sdpa, but for 4 heads of 16 over 2 in float32 it is not right: on"
    ):
        choose("sdpa", CONFIG, a_cache(), 200, 400, sdpa=wrong)


def test_a_cache_in_fp8_is_refused_with_sdpa() -> None:
    """It does not know our exponents."""
    with pytest.raises(ValueError, match="must be auto or triton where kv_cache_dtype is fp8"):
        Settings(prefill_attention="sdpa", kv_cache_dtype="fp8")
    assert Settings(prefill_attention="triton", kv_cache_dtype="fp8")


def test_a_layer_with_a_window_is_ours() -> None:
    """In a step that SDPA serves in its other layers."""
    sdpa, cache, prompts = a_double(), a_cache(), prompts_of([(20, 20)], 1100)
    attend = PrefillChoice({0: True}, sdpa=sdpa).of_step(prompts.chunks)
    q = some_queries(20, 4, 16, torch.float32)

    seen = [attend(q, cache, prompts, ScoreRules(0.25, window)) for window in (8, None)]

    assert len(sdpa.served) == 1
    for window, out in zip((8, None), seen, strict=True):
        wanted = attended(q, cache, prompts, ScoreRules(0.25, window))
        torch.testing.assert_close(out, wanted)


def test_sdpa_that_fails_while_it_serves_is_replaced_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That step's tokens are ours, and every later one's; one sentence tells."""
    calls: list[int] = []

    def fails_at_last(
        q: Tensor,
        cache: LayerCache,
        prompts: Prompts,
        rules: ScoreRules,
        _out: Tensor | None = None,
        /,
    ) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("an internal error\nmore")
        return attended(q, cache, prompts, rules)

    choice = PrefillChoice({0: True}, sdpa=fails_at_last)
    cache, prompts = a_cache(), prompts_of([(9, 9)], 1100)
    arguments = (some_queries(9, 4, 16, torch.float32), cache, prompts, ScoreRules(0.25))
    wanted, attend = our_prefill(*arguments), choice.of_step(prompts.chunks)

    for _layer in range(3):
        assert torch.equal(attend(*arguments), wanted)
    assert not is_sdpas(choice, (9, 9))
    assert len(calls) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "prompts by triton from now on: sdpa raised RuntimeError: an internal error"
    ]


def test_ranks_keep_sdpa_where_all_of_them_found_it_faster() -> None:
    """What one rank gathers, every rank must have memory for."""
    first = PrefillChoice({64: True, 256: True}, {PromptChunk(64, 512): True})
    others_numbers = iter([2, 0, 1, 1, 1])  # of the other rank, in the order of its calls

    agreed = first.agreed(lambda number: min(number, next(others_numbers)))

    assert agreed.is_sdpas == {64: False, 256: True}
    assert agreed.are_laters_sdpas == {PromptChunk(64, 512): True}


@pytest.mark.parametrize("is_first", [True, False])
def test_no_rank_uses_sdpa_where_one_cannot(*, is_first: bool) -> None:
    """A rank on which it failed has no sizes, and calls as often as one that has."""
    ranks = [PrefillChoice({64: True}, {PromptChunk(64, 512): True}), PrefillChoice()]
    own, other = ranks if is_first else ranks[::-1]
    numbers = iter([len(other.is_sdpas), len(other.are_laters_sdpas)])

    agreed = own.agreed(lambda number: min(number, next(numbers)))

    assert (agreed.is_sdpas, agreed.are_laters_sdpas) == ({}, {})
    assert next(numbers, None) is None
