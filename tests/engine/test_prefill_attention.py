"""Who attends for prompts: torch's own attention beside the reference, and when it is chosen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_engine.errors import BadSettings
from paceline_engine.model.config import ModelConfig, Rope
from paceline_engine.running.prefill.attention import (
    Cache,
    Chunk,
    PagedPrefill,
    PrefillAttention,
    Prompts,
    Scores,
)
from paceline_engine.running.prefill.choice import PrefillChoice, choose
from paceline_engine.running.prefill.sdpa import SdpaPrefill
from paceline_engine.settings import Settings
from paceline_kernels.fp8 import quantize_heads
from paceline_kernels.prefill_attention import reference_paged_prefill_attention

BLOCK_SIZE = 4
OURS, TORCHS = PagedPrefill(), SdpaPrefill()
CONFIG = ModelConfig(
    family="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=64,
    num_q_heads=4,
    num_kv_heads=2,
    head_size=16,
    vocab_size=10,
    max_len=16,
    norm_eps=1e-5,
    rope=Rope(theta=1e4),
    tied_head=True,
)


def a_cache(
    num_blocks: int = 1100, num_kv: int = 2, size: int = 16, dtype: torch.dtype = torch.float32
) -> Cache:
    """One tensor of both, as the engine allocates them: blocks lie apart."""
    generator = torch.Generator().manual_seed(0)
    kv = torch.randn((num_blocks, 2, BLOCK_SIZE, num_kv, size), generator=generator, dtype=dtype)
    return Cache(kv[:, 0], kv[:, 1], None)


def whole_prompts(lengths: list[int], num_blocks: int, padding: int = 0) -> Prompts:
    """Prompts whose every token is computed in this step, over shuffled blocks."""
    shuffled = iter(torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist())
    table = torch.zeros(len(lengths), -(-max(lengths) // BLOCK_SIZE), dtype=torch.int32)
    slots: list[int] = []
    for row, length in enumerate(lengths):
        blocks = [next(shuffled) for _ in range(-(-length // BLOCK_SIZE))]
        table[row, : len(blocks)] = torch.tensor(blocks)
        slots += [blocks[i // BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE for i in range(length)]
    return Prompts(
        tuple(Chunk(length, length) for length in lengths),
        table,
        torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor(slots + [-1] * padding),
        BLOCK_SIZE,
    )


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
    prompts = whole_prompts(lengths, 60, padding)
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(
        (sum(lengths) + padding, num_kv * group, size), generator=generator, dtype=torch.float64
    )

    seen = TORCHS(q, cache, prompts, Scores(0.3))

    wanted = reference_paged_prefill_attention(
        q,
        cache.keys,
        cache.values,
        prompts.block_table,
        prompts.cu_seqlens,
        prompts.context_lens,
        0.3,
    )
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=1e-10)


def test_it_serves_whole_prompts_alone() -> None:
    """A chunk behind a shared prefix, or behind the prompt's first chunk, is ours."""
    choice = PrefillChoice({0: TORCHS})

    assert choice.of_step((Chunk(7, 7), Chunk(3, 3))) is TORCHS
    assert choice.of_step((Chunk(7, 7), Chunk(3, 4))) is choice.ours


def test_it_serves_neither_windows_nor_caps_nor_fp8() -> None:
    """Torch's fast ones have none of them, and the slow one writes all scores to memory."""
    cache = a_cache(4)
    codes, exponents = quantize_heads(cache.keys)

    assert TORCHS.serves_layer(cache, Scores(1.0))
    assert not TORCHS.serves_layer(cache, Scores(1.0, window=8))
    assert not TORCHS.serves_layer(cache, Scores(1.0, softcap=50.0))
    assert not TORCHS.serves_layer(Cache(codes, codes, (exponents, exponents)), Scores(1.0))


def test_the_mean_length_of_a_steps_prompts_decides() -> None:
    """Each prompt is a call of its own: many short ones are ours, whatever one long one is."""
    choice = PrefillChoice({64: OURS, 512: TORCHS, 2048: OURS})

    def name_of(*lengths: int) -> str:
        return choice.of_step(tuple(Chunk(length, length) for length in lengths)).name

    assert [name_of(63), name_of(64), name_of(511)] == ["triton"] * 3
    assert [name_of(512), name_of(2047), name_of(1000, 30)] == ["sdpa"] * 3
    assert [name_of(2048), name_of(1000, 20), name_of()] == ["triton"] * 3


class SlowFrom:
    """Times in place of a GPU's: of our kernel first slower, then faster than torch's."""

    def __init__(self, ours_s: list[float], torchs_s: float = 1.0) -> None:
        self.calls = 0
        self._ours_s = iter(ours_s)
        self._torchs_s = torchs_s

    def __call__(self, run: Callable[[], Any]) -> float:
        assert isinstance(run(), Tensor)
        self.calls += 1
        return self._torchs_s if self.calls % 2 else next(self._ours_s)


def test_the_faster_one_serves_each_length() -> None:
    """Measured once, of lengths that a step can have; a gain of two per cent is noise."""
    seconds_of = SlowFrom([0.5, 1.02, 1.5, 2.0])

    choice = choose("auto", CONFIG, a_cache(), 600, seconds_of=seconds_of)

    assert {length: one.name for length, one in choice.by_length.items()} == {
        64: "triton",
        128: "triton",
        256: "sdpa",
        512: "sdpa",
    }
    assert seconds_of.calls == 8


def test_measuring_leaves_the_cache_as_it_was() -> None:
    """It holds what was computed while the engine warmed up."""
    cache = a_cache()
    before = cache.keys.clone(), cache.values.clone()

    choose("auto", CONFIG, cache, 600, seconds_of=SlowFrom([2.0] * 4))

    assert torch.equal(cache.keys, before[0])
    assert torch.equal(cache.values, before[1])


def test_a_small_cache_is_measured_as_far_as_it_goes() -> None:
    choice = choose("auto", CONFIG, a_cache(40), 8192, seconds_of=SlowFrom([2.0] * 8))

    assert list(choice.by_length) == [64, 128]


def test_where_torch_has_none_ours_serves() -> None:
    """A GPU, a type or a size of heads that neither cuDNN nor FlashAttention knows."""

    def refuses(_run: Callable[[], object]) -> float:
        raise RuntimeError("No available kernel. Aborting execution.")

    assert not choose("auto", CONFIG, a_cache(), 600, seconds_of=refuses).by_length


def never(_run: Callable[[], object]) -> float:
    raise AssertionError("nothing is to be measured")


@pytest.mark.parametrize("windows", [(None, None), (8, None)])
def test_what_is_set_is_not_measured(windows: tuple[int | None, ...]) -> None:
    config = replace(CONFIG, windows=windows)

    assert not choose("triton", config, a_cache(), 600, seconds_of=never).by_length
    choice = choose("sdpa", config, a_cache(), 600, seconds_of=never)
    assert choice.of_step((Chunk(1, 1),)).name == "sdpa"


@pytest.mark.parametrize("changes", [{"windows": (8, 8)}, {"attention_softcap": 50.0}], ids=str)
def test_a_model_that_torch_cannot_serve_is_ours_or_refused(changes: dict[str, Any]) -> None:
    """Nothing is measured for nothing, and who asked for torch is told."""
    config = replace(CONFIG, **changes)

    assert not choose("auto", config, a_cache(), 600, seconds_of=never).by_length
    with pytest.raises(BadSettings, match="every layer of the model has a window or a soft cap"):
        choose("sdpa", config, a_cache(), 600)


def test_torchs_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that neither of its fast ones knows, on this GPU."""

    def refuses(*_arguments: Any) -> Tensor:
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(SdpaPrefill, "__call__", refuses)

    with pytest.raises(
        BadSettings, match="torch has no fast attention here for 4 heads of 16 over 2 in float32"
    ):
        choose("sdpa", CONFIG, a_cache(), 600)


def test_a_cache_in_fp8_is_refused_with_torchs_attention() -> None:
    with pytest.raises(ValueError, match="prefill_attention must be auto or triton where kv_cache"):
        Settings(prefill_attention="sdpa", kv_cache_dtype="fp8")
    assert Settings(prefill_attention="triton", kv_cache_dtype="fp8")


def test_both_are_back_ends() -> None:
    """For the type checker as much as for the reader."""
    back_ends: list[PrefillAttention] = [OURS, TORCHS]

    assert [one.name for one in back_ends] == ["triton", "sdpa"]
