"""What FlashInfer is handed, by a double that computes from nothing else.

Its kernels need a GPU; what they compute there is tried at start.
"""

import logging
import os
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.attention.prefill import flashinfer_paged
from paceline_engine.attention.prefill.attention import Cache, Prompts, RefusedError, Scores
from paceline_engine.attention.prefill.choice import choose
from paceline_engine.attention.prefill.flashinfer_paged import FlashInferPrefill, flashinfer_prefill
from paceline_engine.attention.prefill.offers import set_aside_bytes
from paceline_engine.attention.prefill.scratch import Scratch
from paceline_engine.attention.prefill.trial import fault_of, tolerance, trial_steps
from paceline_kernels.fp8 import quantize_heads
from paceline_testing.flashinfer import BatchPrefillWithPagedKVCacheWrapper
from paceline_testing.prefill import (
    CONFIG,
    KernelDouble,
    a_cache,
    attended,
    prompts_of,
    some_queries,
)

HALF = torch.float16
CACHE = a_cache(300, 2, 64, HALF)


class Made(list[BatchPrefillWithPagedKVCacheWrapper]):
    """Every wrapper that was made."""

    def __call__(self, *args: Any, **options: Any) -> BatchPrefillWithPagedKVCacheWrapper:
        self.append(BatchPrefillWithPagedKVCacheWrapper(*args, **options))
        return self[-1]


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_paged, "WORKSPACE_BYTES", 1 << 10)


def agrees(back_end: FlashInferPrefill, prompts: Prompts, scores: Scores, padding: int = 0) -> bool:
    q = some_queries(prompts.num_tokens + padding, 4, 64, HALF)
    seen = back_end(q, CACHE, prompts, scores)
    wide = Cache(CACHE.keys.float(), CACHE.values.float(), None)
    wanted = attended(q.float(), wide, prompts, scores)
    assert not seen[prompts.num_tokens :].any()
    return torch.allclose(seen.float(), wanted, rtol=0.0, atol=5e-3)


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 60)).map(lambda c: (c[0], sum(c))),
        min_size=1,
        max_size=5,
    ),
    window=st.none() | st.integers(1, 100),
    softcap=st.none() | st.just(2.0),
    padding=st.integers(0, 3),
)
def test_it_is_handed_every_kind_of_step(
    chunks: list[tuple[int, int]], window: int | None, softcap: float | None, padding: int
) -> None:
    """Whole prompts, chunks behind contexts, several at once, windows, soft caps, padding."""
    back_end = FlashInferPrefill(BatchPrefillWithPagedKVCacheWrapper)

    assert agrees(back_end, prompts_of(chunks, 300, padding), Scores(0.2, window, softcap), padding)


def test_a_step_is_planned_once_for_each_kind_of_layer() -> None:
    """However many layers of it there are; the next step anew."""
    made = Made()
    back_end = FlashInferPrefill(made)
    everywhere, windowed = Scores(0.2), Scores(0.2, window=8)

    for chunks in ([(5, 20), (9, 9)], [(30, 41)], [(1, 1)]):
        prompts = prompts_of(chunks, 300)
        for layer in (everywhere, windowed, everywhere, windowed):
            assert agrees(back_end, prompts, layer)

    assert [wrapper.num_plans for wrapper in made] == [3, 3]
    assert made[0].workspace is made[1].workspace


def test_steps_of_equal_prompts_are_planned_each() -> None:
    """Blocks may have changed hands in between: equal chunks are not the same prompts."""
    made = Made()
    back_end = FlashInferPrefill(made)
    prompts = prompts_of([(5, 20)], 300)

    assert agrees(back_end, prompts, Scores(0.2))
    moved = replace(prompts, block_table=prompts.block_table.flip(1))
    assert agrees(back_end, moved, Scores(0.2))
    assert made[0].num_plans == 2


def test_a_plan_that_failed_is_not_taken_for_another() -> None:
    """The step before was planned; this one raised half-way, and comes again."""
    made = Made()
    back_end = FlashInferPrefill(made)
    first, second = prompts_of([(5, 20)], 300), prompts_of([(6, 20)], 300)
    assert agrees(back_end, first, Scores(0.2))
    plan = made[0].plan

    def overflows(*_arguments: Any, **_options: Any) -> None:
        made[0]._plan = None
        raise RuntimeError("Buffer overflow")

    made[0].plan = overflows  # type: ignore[method-assign] # its planner fails
    with pytest.raises(RuntimeError, match="Buffer overflow"):
        agrees(back_end, second, Scores(0.2))
    made[0].plan = plan  # type: ignore[method-assign] # and is well again
    assert agrees(back_end, first, Scores(0.2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_it_passes_the_trial(dtype: torch.dtype, softcap: float | None) -> None:
    """With weights that are rounded, as its kernels round them, and room to spare."""
    scratch = Scratch(a_cache(1100, 2, 64, dtype), num_q_heads=4)
    back_end = FlashInferPrefill(BatchPrefillWithPagedKVCacheWrapper)

    for window in (None, 64):
        layer = Scores(0.125, window, softcap)
        steps = trial_steps(scratch, back_end, [window])
        assert fault_of(back_end, KernelDouble(), steps, layer) is None
    assert tolerance(dtype) < 0.04


def test_it_serves_what_its_kernels_are_made_for() -> None:
    """Two bytes, usual heads, and none of our exponents; windows and soft caps all the same."""
    back_end = FlashInferPrefill(BatchPrefillWithPagedKVCacheWrapper)
    codes, exponents = quantize_heads(CACHE.keys)
    fp8 = Cache(codes, codes, (exponents, exponents))

    assert back_end.serves_layer(CACHE, Scores(1.0, window=8, softcap=50.0))
    assert not back_end.serves_layer(fp8, Scores(1.0))
    assert not back_end.serves_layer(a_cache(4, 2, 64, torch.float32), Scores(1.0))
    assert not back_end.serves_layer(a_cache(4, 2, 80, HALF), Scores(1.0))


def a_package(**contents: Any) -> ModuleType:
    module = ModuleType("flashinfer")
    module.__dict__.update(contents)
    return module


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are found, whatever is installed here."""
    packages = {"flashinfer"}

    def find_spec(name: str) -> object:
        return object() if name in packages else None

    monkeypatch.setattr(flashinfer_paged, "find_spec", find_spec)
    monkeypatch.delenv("FLASHINFER_DISABLE_JIT", raising=False)
    contents = {"BatchPrefillWithPagedKVCacheWrapper": BatchPrefillWithPagedKVCacheWrapper}
    monkeypatch.setitem(sys.modules, "flashinfer", a_package(**contents))
    return packages


def test_a_package_that_is_absent_is_a_refusal(installed: set[str]) -> None:
    """By its name in the registry."""
    installed.clear()

    with pytest.raises(RefusedError, match="flashinfer-python is not installed"):
        flashinfer_prefill(compiles=True)


def test_auto_compiles_nothing(installed: set[str]) -> None:
    """Minutes of nvcc at a start that nobody asked for: kernels must be installed."""
    with pytest.raises(RefusedError, match=r"flashinfer-jit-cache.* not installed, and auto"):
        flashinfer_prefill(compiles=False)
    assert "FLASHINFER_DISABLE_JIT" not in os.environ
    installed.add("flashinfer_jit_cache")
    assert flashinfer_prefill(compiles=False).name == "flashinfer"
    assert os.environ.pop("FLASHINFER_DISABLE_JIT") == "1"


def test_whoever_asks_for_it_lets_it_compile(
    installed: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """And is told before a start that seems to hang."""
    caplog.set_level(logging.INFO)

    assert flashinfer_prefill(compiles=True).name == "flashinfer"
    assert "FLASHINFER_DISABLE_JIT" not in os.environ
    installed.add("flashinfer_jit_cache")
    assert flashinfer_prefill(compiles=True).name == "flashinfer"
    assert [record.getMessage() for record in caplog.records] == [
        "prompts by flashinfer: what it lacks is compiled now, which can take minutes"
    ]


def test_its_own_variable_decides_for_auto_too(
    installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty, it says that compiling is welcome."""
    assert installed
    monkeypatch.setenv("FLASHINFER_DISABLE_JIT", "")

    assert flashinfer_prefill(compiles=False).name == "flashinfer"
    assert os.environ["FLASHINFER_DISABLE_JIT"] == ""


def test_memory_is_set_aside_where_it_may_be_chosen(installed: set[str]) -> None:
    """Before the KV cache takes all that is left."""
    assert set_aside_bytes("auto") == set_aside_bytes("flashinfer") == 144 << 20
    assert set_aside_bytes("triton") == set_aside_bytes("sdpa") == 0
    installed.clear()
    assert set_aside_bytes("auto") == 0


def test_a_package_that_cannot_be_imported_is_a_refusal(
    installed: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another torch, a home that nobody may write: its import raises what it likes."""
    assert installed
    monkeypatch.setitem(sys.modules, "flashinfer", a_package())

    with pytest.raises(RefusedError, match="its import raised AttributeError: module 'flash"):
        flashinfer_prefill(compiles=True)


def test_a_kernel_that_nobody_compiled_is_a_refusal() -> None:
    """Of FlashInfer's own type, which is told by its name: the package is not imported here."""

    class MissingJITCacheError(RuntimeError):
        pass

    made = Made()
    back_end = FlashInferPrefill(made)
    prompts = prompts_of([(5, 20)], 300)
    assert agrees(back_end, prompts, Scores(0.2))

    def missing(*_arguments: Any, **_options: Any) -> None:
        raise MissingJITCacheError("JIT compilation is disabled")

    made[0].plan = missing  # type: ignore[method-assign] # no such kernel
    with pytest.raises(RefusedError, match="no kernel of it was compiled for such heads"):
        agrees(back_end, replace(prompts), Scores(0.2))


def test_it_is_chosen_where_it_is_set() -> None:
    """After the trial, for every kind of step."""
    config = replace(CONFIG, head_size=64, hidden_size=256, windows=(None, 32))
    offer = {"flashinfer": lambda: FlashInferPrefill(BatchPrefillWithPagedKVCacheWrapper)}

    choice = choose("flashinfer", config, CACHE, 128, others=offer, ours=KernelDouble())

    assert {one.name for one in (*choice.whole.values(), *choice.later.values())} == {"flashinfer"}
