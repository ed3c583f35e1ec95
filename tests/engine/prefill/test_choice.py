"""Which back end serves a step: who is right, what was measured, what was set."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from paceline_engine.attention.prefill.attention import (
    Chunk,
    PagedPrefill,
    PrefillAttention,
    RefusedError,
)
from paceline_engine.attention.prefill.choice import ByLength, PrefillChoice, choose
from paceline_engine.attention.prefill.offers import offers
from paceline_engine.attention.prefill.sdpa import SdpaPrefill
from paceline_engine.errors import BadSettings
from paceline_engine.settings import Settings
from paceline_testing.clock import ManualClock
from paceline_testing.prefill import CONFIG, PrefillDouble, a_cache

OURS, TORCHS = PagedPrefill(), SdpaPrefill()
CLOCK = ManualClock()


def a_double(name: str, call_s: float | Callable[[int], float] = 1.0, **rest: Any) -> PrefillDouble:
    takes = call_s if callable(call_s) else lambda _length: call_s
    return PrefillDouble(name, CLOCK, takes, **rest)


def _same(one: PrefillAttention) -> PrefillAttention:
    return one


def measured(ours: PrefillDouble, *others: PrefillDouble, **options: Any) -> PrefillChoice:
    given: dict[str, Any] = {"config": CONFIG, "cache": a_cache(), "max_tokens": 200, **options}
    return choose(
        "auto",
        given["config"],
        given["cache"],
        given["max_tokens"],
        others={one.name: partial(_same, one) for one in others},
        ours=ours,
        seconds_of=ours.seconds_of,
    )


def names(by_length: ByLength) -> dict[int, str]:
    return {length: one.name for length, one in by_length.items()}


def test_the_mean_length_of_a_steps_prompts_decides() -> None:
    """Each prompt is a call of its own: many short ones are ours, whatever one long one is."""
    choice = PrefillChoice({64: OURS, 512: TORCHS, 2048: OURS})

    def name_of(*lengths: int) -> str:
        return choice.of_step(tuple(Chunk(length, length) for length in lengths)).name

    assert [name_of(63), name_of(64), name_of(511)] == ["triton"] * 3
    assert [name_of(512), name_of(2047), name_of(1000, 30)] == ["sdpa"] * 3
    assert [name_of(2048), name_of(1000, 20), name_of()] == ["triton"] * 3


def test_later_chunks_are_a_class_of_their_own() -> None:
    """What reads a long context is not what reads only itself; one later chunk is enough."""
    whole, later = a_double("a"), a_double("b")
    choice = PrefillChoice({0: whole}, {0: later})

    assert choice.of_step((Chunk(7, 7), Chunk(3, 3))) is whole
    assert choice.of_step((Chunk(7, 7), Chunk(3, 4))) is later


def test_the_fastest_one_serves_each_length() -> None:
    """Among all that are right; a gain of four per cent is noise."""
    ours = a_double("triton", lambda length: 1.0 if length < 512 else 2.0)
    sdpa = a_double("sdpa", lambda length: {64: 1.1, 128: 0.96, 256: 0.94}.get(length, 1.5))
    flashinfer = a_double("flashinfer", lambda length: 1.4 if length == 512 else 1.0)

    choice = measured(ours, sdpa, flashinfer, max_tokens=600)

    assert names(choice.whole) == {64: "triton", 128: "triton", 256: "sdpa", 512: "flashinfer"}


def test_who_serves_whole_prompts_alone_is_not_asked_for_more() -> None:
    """Nor does it keep another from serving later chunks."""
    ours, sdpa = a_double("triton"), a_double("sdpa", 0.5, laters=False)
    flashinfer = a_double("flashinfer", 0.8)

    choice = measured(ours, sdpa, flashinfer)

    assert set(names(choice.whole).values()) == {"sdpa"}
    assert set(names(choice.later).values()) == {"flashinfer"}
    assert all(chunk.is_whole for chunks in sdpa.served for chunk in chunks)
    assert measured(ours, sdpa).later == {}


def test_what_the_first_layer_pays_counts_once_a_step() -> None:
    """Planning takes what 3 layers save: a model of 2 is ours, one of 32 is not."""
    ours, other = a_double("triton"), a_double("flashinfer", 0.5, plan_s=1.5)
    of_32 = replace(CONFIG, num_layers=32, windows=(None,) * 32)

    assert set(names(measured(ours, other).whole).values()) == {"triton"}
    assert set(names(measured(ours, other, config=of_32).whole).values()) == {"flashinfer"}


def test_what_a_length_costs_that_was_never_seen_counts() -> None:
    """Prompts are of any length: who compiles for each is fast only when it is measured twice."""
    ours = a_double("triton")
    whole = [
        names(measured(ours, a_double("sdpa", 0.5, length_s=length_s, laters=False)).whole)
        for length_s in (0.01, 5.0)
    ]

    assert [set(each.values()) for each in whole] == [{"sdpa"}, {"triton"}]


def test_layers_that_another_does_not_serve_count_for_who_does() -> None:
    """One is faster where there is no window, the other a little faster everywhere."""
    config = replace(CONFIG, num_layers=6, windows=(None, 8, 8, 8, 8, 8))
    ours, sdpa = a_double("triton"), a_double("sdpa", 0.5, windows=False)
    flashinfer = a_double("flashinfer", 0.8)

    assert set(names(measured(ours, sdpa, config=config).whole).values()) == {"sdpa"}
    choice = measured(ours, sdpa, flashinfer, config=config)
    assert set(names(choice.whole).values()) == {"flashinfer"}


def test_measuring_leaves_the_cache_as_it_was() -> None:
    """It holds what was computed while the engine warmed up."""
    cache = a_cache()
    before = cache.keys.clone(), cache.values.clone()

    measured(a_double("triton"), a_double("sdpa", 0.5), cache=cache)

    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])


def test_a_small_cache_is_measured_as_far_as_it_goes() -> None:
    """A longer prompt will never be."""
    choice = measured(a_double("triton"), a_double("sdpa", 0.5), cache=a_cache(40), max_tokens=8192)

    assert list(choice.whole) == list(choice.later) == [64, 128]


def test_one_that_is_wrong_is_never_used(caplog: pytest.LogCaptureFixture) -> None:
    """However fast; one sentence says what was seen."""
    wrong = a_double("wrong", 0.1, spoil=lambda out: out * 1.1)
    right = a_double("right", 0.5)

    choice = measured(a_double("triton"), wrong, right)

    assert set(names(choice.whole).values()) == {"right"}
    (warning,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert "prompts without wrong: " in warning.getMessage()
    assert "a row differs from our kernel's by 0.1 of its length" in warning.getMessage()


def test_one_that_refuses_or_is_absent_is_left_out_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """That is no fault: what is not there cannot be wrong."""
    caplog.set_level(logging.INFO)

    def refuses(_out: torch.Tensor) -> torch.Tensor:
        raise RefusedError("there is no kernel for such heads")

    def absent() -> PrefillAttention:
        raise RefusedError("the package is not installed")

    ours = a_double("triton")
    others = {"a": absent, "b": lambda: a_double("b", 0.1, spoil=refuses)}
    choice = choose(
        "auto", CONFIG, a_cache(), 200, others=others, ours=ours, seconds_of=ours.seconds_of
    )

    assert choice == PrefillChoice(ours=ours)
    assert [(one.levelno, one.getMessage()) for one in caplog.records] == [
        (logging.INFO, "prompts without a: the package is not installed"),
        (logging.INFO, "prompts without b: there is no kernel for such heads"),
    ]


def never(_runs: object) -> float:
    raise AssertionError("nothing is to be measured")


@pytest.mark.parametrize("windows", [(None, None), (8, None)])
def test_what_is_set_is_not_measured(windows: tuple[int | None, ...]) -> None:
    """It is tried all the same."""
    config = replace(CONFIG, windows=windows)

    assert not choose("triton", config, a_cache(), 200, seconds_of=never).whole
    choice = choose("sdpa", config, a_cache(), 200, seconds_of=never)
    assert choice.of_step((Chunk(1, 1),)).name == "sdpa"
    assert choice.of_step((Chunk(1, 2),)).name == "triton"


@pytest.mark.parametrize("changes", [{"windows": (8, 8)}, {"attention_softcap": 50.0}], ids=str)
def test_a_model_that_torch_cannot_serve_is_ours_or_refused(changes: dict[str, Any]) -> None:
    """Nothing is measured for nothing, and who asked for torch is told."""
    config = replace(CONFIG, **changes)
    torchs = {"sdpa": SdpaPrefill}

    assert not choose("auto", config, a_cache(), 200, others=torchs, seconds_of=never).whole
    with pytest.raises(BadSettings, match=r"is sdpa, which serves none .* without a window"):
        choose("sdpa", config, a_cache(), 200)


def test_what_is_set_and_wrong_is_refused() -> None:
    """Who asked for it must not get another's tokens unasked, nor wrong ones."""
    wrong = {"sdpa": lambda: a_double("sdpa", spoil=lambda out: out + 1)}

    with pytest.raises(
        BadSettings, match="is sdpa, but for 4 heads of 16 over 2 in float32 it is not right: on"
    ):
        choose("sdpa", CONFIG, a_cache(), 200, others=wrong)


def test_what_is_set_and_absent_is_refused() -> None:
    """The sentence says what is missing."""

    def absent() -> PrefillAttention:
        raise RefusedError("the package is not installed")

    with pytest.raises(BadSettings, match=r"is flashinfer, but the package is not installed\."):
        choose("flashinfer", CONFIG, a_cache(), 200, others={"flashinfer": absent})


def test_a_cache_in_fp8_is_refused_with_others() -> None:
    """None of them knows our exponents."""
    for other in ("sdpa", "flashinfer", "cudnn"):
        with pytest.raises(ValueError, match="must be auto or triton where kv_cache_dtype is fp8"):
            Settings.model_validate({"prefill_attention": other, "kv_cache_dtype": "fp8"})
    assert Settings(prefill_attention="triton", kv_cache_dtype="fp8")


def test_every_name_of_the_setting_is_an_offer() -> None:
    """And the other way round."""
    annotation = Settings.model_fields["prefill_attention"].annotation
    names = set(getattr(annotation, "__args__", ()))

    assert set(offers(compiles=False)) == names - {"auto", "triton"}


def test_both_are_back_ends() -> None:
    """For the type checker as much as for the reader."""
    back_ends: list[PrefillAttention] = [OURS, TORCHS]

    assert [one.name for one in back_ends] == ["triton", "sdpa"]
