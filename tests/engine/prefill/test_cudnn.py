"""What cuDNN is handed, by a double that computes from the declared tensors and their addresses.

Its kernels need a GPU; what they compute there is tried at start.
"""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.attention.prefill import cudnn_built, cudnn_graphs, cudnn_paged, timing
from paceline_engine.attention.prefill.attention import Cache, Chunk, Prompts, RefusedError, Scores
from paceline_engine.attention.prefill.choice import choose
from paceline_engine.attention.prefill.cudnn_graphs import LADDER, Geometry, Rung, rung_of
from paceline_engine.attention.prefill.cudnn_paged import CudnnPrefill, cudnn_prefill, step_tables
from paceline_engine.attention.prefill.offers import set_aside_bytes
from paceline_engine.attention.prefill.scratch import Scratch
from paceline_engine.attention.prefill.trial import fault_of, trial_steps
from paceline_kernels.fp8 import quantize_heads
from paceline_testing.clock import ManualClock
from paceline_testing.cudnn import Library, cudnnGraphNotSupportedError, pygraph
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
SCORES = Scores(0.2)
CHUNKS = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 60)).map(lambda c: (c[0], sum(c))),
    min_size=1,
    max_size=9,
)


@pytest.fixture(autouse=True)
def _short_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_graphs, "MAX_CONTEXT", 4096)


def agrees(back_end: CudnnPrefill, prompts: Prompts, padding: int = 0) -> bool:
    q = some_queries(prompts.num_tokens + padding, 4, 64, HALF)
    seen = back_end(q, CACHE, prompts, SCORES)
    wide = Cache(CACHE.keys.float(), CACHE.values.float(), None)
    wanted = attended(q.float(), wide, prompts, SCORES)
    assert not seen[prompts.num_tokens :].any()
    return torch.allclose(seen.float(), wanted, rtol=0.0, atol=5e-3)


@settings(max_examples=40, deadline=None)
@given(chunks=CHUNKS, padding=st.integers(0, 3))
def test_it_is_handed_every_kind_of_step(chunks: list[tuple[int, int]], padding: int) -> None:
    """Whole prompts, chunks behind contexts, several at once, padding."""
    prompts = prompts_of(chunks, 300, padding)

    assert agrees(CudnnPrefill(Library()), prompts, padding)


@given(chunks=CHUNKS, spare=st.integers(0, 7))
def test_a_step_is_padded_to_its_rung(chunks: list[tuple[int, int]], spare: int) -> None:
    """Each row as it was; what is none has no query, and writes nothing."""
    prompts = prompts_of(chunks, 300)
    count = len(chunks)
    geometry = Geometry(4, 2, 64, 4, HALF, 0.2)

    tables = step_tables(prompts, geometry, Rung(count + spare, 64))

    assert tables.q_lens.tolist() == [tokens for tokens, _ in chunks] + [0] * spare
    assert tables.kv_lens.tolist() == [context for _, context in chunks] + [1] * spare
    assert tables.offsets.shape == (count + spare + 1,)
    assert tables.offsets.diff().tolist() == [4 * 64 * n for n in tables.q_lens.tolist()]
    width = prompts.block_table.shape[1]
    assert tables.table.shape == (count + spare, geometry.table_width)
    assert tables.table.is_contiguous()
    assert torch.equal(tables.table[:count, :width], prompts.block_table)
    assert not tables.table[count:].any()
    assert not tables.table[:, width:].any()
    kinds = {x.dtype for x in (tables.q_lens, tables.kv_lens, tables.offsets, tables.table)}
    assert kinds == {torch.int32}


@given(lengths=st.lists(st.integers(1, 4096), min_size=1, max_size=40))
def test_a_rung_holds_its_steps(lengths: list[int]) -> None:
    """And there is none for what no rung holds."""
    chunks = [Chunk(length, length) for length in lengths]

    rung = rung_of(chunks)

    holding = [r for r in LADDER if len(chunks) <= r.sequences and max(lengths) <= r.tokens]
    assert rung == (holding[0] if holding else None)


def test_a_context_beyond_the_table_is_not_served() -> None:
    """However short the chunk is."""
    assert rung_of([Chunk(5, 4096)]) is not None
    assert rung_of([Chunk(5, 4097)]) is None
    assert rung_of([]) is None


@pytest.mark.parametrize("max_tokens", [512, 3000])
def test_no_rung_serves_untried(max_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that a step can reach, that of the longest prompt among them."""
    monkeypatch.setattr(timing, "LENGTHS", (64,))
    config = replace(CONFIG, head_size=64, hidden_size=256)
    cache, library = a_cache(1100, 2, 64, HALF), Library()
    offer = {"cudnn": lambda: CudnnPrefill(library)}

    choose("cudnn", config, cache, max_tokens, others=offer, ours=KernelDouble())

    untried = {Rung(1, 8192)} if max_tokens <= 2048 else set()
    calls = {rung: graph.num_calls for rung, graph in zip(LADDER, library.graphs, strict=True)}
    assert {rung for rung, num in calls.items() if num == 0} == untried


def test_no_graph_is_built_while_it_serves() -> None:
    """All are at the first call; a layer's tables are made once a step."""
    library = Library()
    back_end = CudnnPrefill(library)

    for chunks in ([(5, 20), (9, 9)], [(30, 41)], [(1, 1)] * 9):
        assert agrees(back_end, prompts_of(chunks, 300))
        assert len(library.graphs) == len(LADDER)

    prompts = prompts_of([(5, 20)], 300)
    assert agrees(back_end, prompts)
    kept = back_end._step
    assert agrees(back_end, prompts)
    assert back_end._step is kept
    moved = replace(prompts, block_table=prompts.block_table.flip(1))
    assert agrees(back_end, moved), "equal chunks are not the same prompts"


def test_queries_with_gaps_between_tokens_are_packed() -> None:
    """They are a part of the product that keys and values come from."""
    back_end = CudnnPrefill(Library())
    prompts = prompts_of([(5, 20), (3, 3)], 300)
    q = some_queries(8, 4, 64, HALF)
    wide = torch.zeros(8, 8, 64, dtype=HALF)
    wide[:, :4] = q

    assert torch.equal(
        back_end(wide[:, :4], CACHE, prompts, SCORES), back_end(q, CACHE, prompts, SCORES)
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_it_passes_the_trial(dtype: torch.dtype) -> None:
    """With weights that are rounded, as its kernels round them."""
    scratch = Scratch(a_cache(1100, 2, 64, dtype), num_q_heads=4)
    back_end = CudnnPrefill(Library())
    steps = trial_steps(scratch, back_end, [None])

    assert fault_of(back_end, KernelDouble(), steps, Scores(0.125)) is None


class Partial(Library):
    """Whose graphs of 32 sequences no engine takes, or that takes `build_s` for each."""

    def __init__(self, refused: set[int], clock: ManualClock, build_s: float = 0.0) -> None:
        super().__init__()
        self.refused, self.clock, self.build_s = refused, clock, build_s

    def pygraph(self, **options: Any) -> pygraph:
        graph = super().pygraph(**options)

        def check_support() -> None:
            self.clock.advance(self.build_s)
            if graph.asked["q"].dim[0] in self.refused:
                raise cudnnGraphNotSupportedError("no engine\nand more")

        graph.check_support = check_support  # type: ignore[method-assign] # as its engines say
        return graph


def test_what_could_not_be_built_is_ours() -> None:
    """The others serve."""
    back_end = CudnnPrefill(Partial({32}, ManualClock()))

    assert back_end.serves((Chunk(1, 1),) * 9)
    assert agrees(back_end, prompts_of([(5, 20)], 300))
    assert not back_end.serves((Chunk(1, 1),) * 9)
    assert back_end.serves((Chunk(1, 1),) * 8)


def test_a_start_is_not_held_up_for_long() -> None:
    """Two graphs of 40 seconds are built, and no third is begun."""
    clock = ManualClock()
    back_end = CudnnPrefill(Partial(set(), clock, 40.0), clock)

    assert agrees(back_end, prompts_of([(5, 20)], 300))
    assert back_end.serves((Chunk(2000, 2000),))
    assert not back_end.serves((Chunk(2000, 2000),) * 2)


def test_none_at_all_is_a_refusal() -> None:
    """With cuDNN's reason."""
    back_end = CudnnPrefill(Partial({1, 8, 32}, ManualClock()))

    with pytest.raises(RefusedError, match=r"no graph for such heads here: no engine$"):
        agrees(back_end, prompts_of([(5, 20)], 300))


def test_a_graph_that_wants_more_memory_than_is_set_aside_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The KV cache has taken all else."""
    monkeypatch.setattr(cudnn_built, "WORKSPACE_BYTES", 99)

    with pytest.raises(RefusedError, match="a graph wants 100 bytes, where 99 are set aside"):
        agrees(CudnnPrefill(Library()), prompts_of([(5, 20)], 300))


def test_it_serves_what_its_graphs_are_declared_for() -> None:
    """Two bytes, usual heads, no window, no cap, none of our exponents."""
    back_end = CudnnPrefill(Library())
    codes, exponents = quantize_heads(CACHE.keys)
    fp8 = Cache(codes, codes, (exponents, exponents))
    threes = torch.zeros(4, 3, 2, 64, dtype=HALF)
    of_three = Cache(threes, threes, None)

    assert back_end.serves_layer(CACHE, SCORES)
    assert not back_end.serves_layer(CACHE, Scores(0.2, window=8))
    assert not back_end.serves_layer(CACHE, Scores(0.2, softcap=50.0))
    assert not back_end.serves_layer(fp8, SCORES)
    assert not back_end.serves_layer(of_three, SCORES)
    assert not back_end.serves_layer(a_cache(4, 2, 64, torch.float32), SCORES)
    assert not back_end.serves_layer(a_cache(4, 2, 80, HALF), SCORES)
    assert agrees(back_end, prompts_of([(5, 20)], 300))
    assert back_end.serves_layer(a_cache(4, 2, 64, HALF), SCORES), "of any number of blocks"
    assert not back_end.serves_layer(CACHE, Scores(0.3)), "of another scale"


def test_a_package_that_is_absent_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name in the registry; and one that cannot be imported by what it raised."""
    monkeypatch.setattr(cudnn_paged, "find_spec", lambda _name: None)
    with pytest.raises(RefusedError, match="nvidia-cudnn-frontend is not installed"):
        cudnn_prefill()
    assert set_aside_bytes("cudnn") == 0

    monkeypatch.setattr(cudnn_paged, "find_spec", lambda _name: object())
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(RefusedError, match="its import raised ModuleNotFoundError"):
        cudnn_prefill()
    assert set_aside_bytes("cudnn") == 64 << 20
    assert set_aside_bytes("triton") == 0


def test_it_is_chosen_where_it_is_set() -> None:
    """After the trial, for every kind of step."""
    config = replace(CONFIG, head_size=64, hidden_size=256)
    offer = {"cudnn": lambda: CudnnPrefill(Library())}

    choice = choose("cudnn", config, CACHE, 128, others=offer, ours=KernelDouble())

    assert {one.name for one in (*choice.whole.values(), *choice.later.values())} == {"cudnn"}
