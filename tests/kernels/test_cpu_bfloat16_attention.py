"""The compiled attention in bfloat16, over pairs and over FP8, beside torch's in float64."""

import functools
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_kernels.cpu import NativeOps, native_ops
from paceline_kernels.cpu.cpu_features import this_cpu
from paceline_kernels.cpu.loading import load_library, places
from paceline_kernels.fp8 import dequantize_heads, quantize_heads
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_testing.kernel_cases import assert_within_ulps, random_floats
from paceline_testing.pairs import paired_keys, paired_values

SCALE = 0.2


BUILDS = {"tiles": "cc -DEMULATE_TILES", "narrow registers": "cc -mno-avx512f"}
"""Of AMX, whose tiles plain C computes, and for a machine with AVX2."""


@functools.cache
def _ops(build: str) -> NativeOps:
    """Compile for the machine at hand, or as `BUILDS` say."""
    if build not in BUILDS:
        return native_ops() or pytest.skip("no C compiler here")
    if build == "narrow registers" and platform.machine() != "x86_64":
        pytest.skip("other machines have registers of one size")
    if build == "tiles" and "avx512f" not in this_cpu().features:
        pytest.skip("tiles, emulated too, need AVX-512")
    library = load_library(replace(places(os.environ), compiler=BUILDS[build])).library
    assert library is not None
    ops = NativeOps(library)
    assert ops.matmul.has_tile_products or build != "tiles"
    return ops


@pytest.fixture(params=["1 thread", "2 threads", *BUILDS])
def native(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    before = torch.get_num_threads()
    torch.set_num_threads(1 if request.param == "1 thread" else 2)
    yield _ops(request.param)
    torch.set_num_threads(before)


@pytest.fixture
def registers() -> NativeOps:
    return _ops("1 thread")


@dataclass(frozen=True)
class Case:
    """Sequences as (tokens in the step, keys that the last of them sees)."""

    sequences: list[tuple[int, int]]
    heads: tuple[int, int, int] = (6, 2, 32)  # of queries, of keys, and their size
    window: int | None = None
    block_size: int = 16
    is_fp8: bool = False

    def attend(self, native: NativeOps, *, decodes: bool = False) -> Tensor:
        """Attend, after comparison with float64: [tokens, num_q_heads * head_size].

        Blocks are shuffled, with NaN in every slot that no token may read.
        """
        q_heads, kv_heads, head_size = self.heads
        counts = [-(-length // self.block_size) for _, length in self.sequences]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(3)) + 1
        shape = (sum(counts) + 1, self.block_size, kv_heads, head_size)
        k, v = (self._floats(*shape, seed=seed) for seed in (4, 5))
        k[0] = v[0] = torch.nan
        table = torch.zeros(len(counts), max(counts) + 1, dtype=torch.int32)
        for row, (blocks, (_, length)) in enumerate(
            zip(order.split(counts), self.sequences, strict=True)
        ):
            table[row, : len(blocks)] = blocks.int()
            if length % self.block_size:
                k[blocks[-1], length % self.block_size :] = torch.nan
                v[blocks[-1], length % self.block_size :] = torch.nan
        tokens = [count for count, _ in self.sequences]
        starts = torch.tensor([0, *tokens]).cumsum(0).int()
        lengths = torch.tensor([length for _, length in self.sequences], dtype=torch.int32)
        # The last tokens are the same, however many there are.
        qkv = self._floats(700, (q_heads + 2 * kv_heads) * head_size, seed=6)[-sum(tokens) :]
        q = qkv[:, : q_heads * head_size].unflatten(1, (q_heads, head_size))
        k_cache, v_cache, exponents = paired_keys(k), paired_values(v), None
        if self.is_fp8:
            (k_cache, k_exponents), (v_cache, v_exponents) = quantize_heads(k), quantize_heads(v)
            exponents = k_exponents, v_exponents
            k = dequantize_heads(k_cache, k_exponents, torch.float64)
            v = dequantize_heads(v_cache, v_exponents, torch.float64)
        wanted = reference_paged_prefill_attention(
            q.double(), k.double(), v.double(), table, starts, lengths, SCALE, self.window
        )
        out = torch.full((sum(tokens), q_heads * head_size), torch.nan, dtype=torch.bfloat16)
        attention = partial(
            native.paged_decode_attention if decodes else native.paged_prompt_attention,
            qkv=qkv,
            num_q_heads=q_heads,
            k_cache=k_cache,
            v_cache=v_cache,
            exponents=exponents,
            block_table=table,
            context_lens=lengths,
            out=out,
            scale=SCALE,
            window=self.window,
        )
        attention(rows=len(lengths)) if decodes else attention(cu_seqlens=starts)
        assert_within_ulps(out, wanted.flatten(1), size=float(v.nan_to_num().abs().max()))
        return out

    @staticmethod
    def _floats(*sizes: int, seed: int) -> Tensor:
        return random_floats(*sizes, dtype=torch.bfloat16, device="cpu", seed=seed)


HEADS = [(9, 3, 64), (4, 4, 16), (32, 1, 32), (7, 1, 96), (2, 1, 128), (10, 1, 80), (14, 2, 512)]
PROMPTS = [[(1, 1)], [(5, 5), (3, 40)], [(33, 33), (1, 9), (20, 100), (64, 64)]]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("sequences", PROMPTS, ids=str)
@pytest.mark.parametrize("window", [None, 1, 12])
def test_prompts_agree_with_float64(
    native: NativeOps,
    sequences: list[tuple[int, int]],
    heads: tuple[int, int, int],
    window: int | None,
) -> None:
    """Whole prompts and the ends of long ones; groups that fill a tile's lines and that do not."""
    Case(sequences, heads, window).attend(native)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("lengths", [[1], [8, 3, 40], [17, 1, 9, 100, 64, 33]], ids=str)
@pytest.mark.parametrize("window", [None, 1, 12])
def test_decodes_agree_with_float64(
    native: NativeOps, lengths: list[int], heads: tuple[int, int, int], window: int | None
) -> None:
    """Ends and windows inside a block and a pair."""
    Case([(1, length) for length in lengths], heads, window).attend(native, decodes=True)


@pytest.mark.parametrize("block_size", [16, 32, 48])
@pytest.mark.parametrize("window", [None, 300, 600])
@pytest.mark.parametrize("is_fp8", [False, True], ids=["pairs", "fp8"])
def test_long_contexts_agree_with_float64(
    native: NativeOps, block_size: int, window: int | None, *, is_fp8: bool
) -> None:
    """Several chunks of keys, windows that begin within one, blocks of several pieces."""
    sequences = [(40, 1100), (3, 513), (1, 512), (20, 511)]
    Case(sequences, window=window, block_size=block_size, is_fp8=is_fp8).attend(native)
    decodes = [(1, length) for _, length in sequences]
    case = Case(decodes, window=window, block_size=block_size, is_fp8=is_fp8)
    case.attend(native, decodes=True)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_shape_agrees_with_float64(data: st.DataObject) -> None:
    """Whatever the sequences, heads, blocks and windows are."""
    length = st.integers(1, 600)
    lengths = data.draw(st.lists(length, min_size=1, max_size=4))
    sequences = [(data.draw(st.integers(1, min(length, 70))), length) for length in lengths]
    kv_heads = data.draw(st.integers(1, 3))
    heads = (data.draw(st.integers(1, 32)) * kv_heads, kv_heads, data.draw(st.integers(1, 9)) * 16)
    window = data.draw(st.none() | st.integers(1, 700))
    block_size = data.draw(st.sampled_from([16, 32, 80]))
    native = _ops(data.draw(st.sampled_from(["1 thread", *BUILDS])))

    Case(sequences, heads, window, block_size, data.draw(st.booleans())).attend(native)


@pytest.mark.parametrize("window", [None, 37, 520])
def test_a_token_attends_alike_in_every_batch(registers: NativeOps, window: int | None) -> None:
    """To the last bit: as a decode, in a whole prompt, and wherever the prompt is cut."""
    whole = Case([(600, 600)], (9, 3, 64), window).attend(registers)
    for cut in (1, 2, 17, 550):
        assert torch.equal(Case([(cut, 600)], (9, 3, 64), window).attend(registers)[-1], whole[-1])
    decoded = Case([(1, 600)], (9, 3, 64), window).attend(registers, decodes=True)

    assert torch.equal(decoded[0], whole[-1])


def test_what_is_not_a_number_is_not_lost(native: NativeOps) -> None:
    """A query that is none has no attention either; the queries beside it have theirs."""
    qkv, cache = Case._floats(4, 48, seed=1), Case._floats(1, 16, 1, 16, seed=2)
    qkv[1, 0] = torch.nan
    out = torch.empty(4, 16, dtype=torch.bfloat16)

    native.paged_prompt_attention(
        qkv=qkv,
        num_q_heads=1,
        k_cache=paired_keys(cache),
        v_cache=paired_values(cache),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 4], dtype=torch.int32),
        context_lens=torch.tensor([4], dtype=torch.int32),
        out=out,
        scale=SCALE,
        window=None,
    )

    assert out[1].isnan().all()
    assert out[[0, 2, 3]].isfinite().all()


def test_heads_that_no_tile_holds_are_refused(native: NativeOps) -> None:
    """A group is in one task, a head is whole vectors, and a block whole pieces."""
    cases = {
        "33 heads of 16 on one": Case([(1, 1)], (33, 1, 16)),
        "1 heads of 24": Case([(1, 1)], (1, 1, 24)),
        "1 heads of 528 on one": Case([(1, 1)], (1, 1, 528)),
        "in blocks of 8": Case([(1, 1)], (1, 1, 16), block_size=8),
    }
    for words, case in cases.items():
        for decodes in (False, True):
            with pytest.raises(ValueError, match=words):
                case.attend(native, decodes=decodes)
