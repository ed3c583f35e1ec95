import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_kernels.decode_attention import kernel, reference_paged_decode_attention
from paceline_kernels.decode_attention.plan import UNIT
from paceline_kernels.tuned import SHIPPED, Gpu, blocks_of
from paceline_testing.kernel_cases import (
    DTYPES,
    Heads,
    PagedKV,
    a_paged_kv,
    assert_near,
    random_floats,
)


def reference(
    q: torch.Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    return reference_paged_decode_attention(
        q.double(), *kv.double().caches, kv.block_table, kv.context_lens, scale, window, softcap
    )


LENGTHS = (1, 17, 0, 300, 16, 129)  # one token, padding, a block's edge, several parts


HEADS = [
    Heads(9, 3, 64),
    *(Heads(group, 1, 64, block_size=32) for group in range(1, 9)),
    Heads(8, 2, 128),
    Heads(2, 2, 96),
    Heads(2, 1, 256, block_size=32),
]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_attention_agrees_with_float64(
    heads: Heads, dtype: torch.dtype, device: str
) -> None:
    """Ragged lengths over shuffled blocks, with NaN wherever a row has no token."""
    kv = a_paged_kv(LENGTHS, heads, dtype=dtype, device=device)
    q = random_floats(len(LENGTHS), heads.num_q, heads.size, dtype=dtype, device=device, seed=1)
    scale = heads.size**-0.5

    seen = kernel.paged_decode_attention(q, *kv.caches, kv.block_table, kv.context_lens, scale)

    assert_near(seen, reference(q, kv, scale))


@pytest.mark.parametrize("window", [1, 16, 100, 150, 1000])
@pytest.mark.parametrize("softcap", [None, 0.8])
def test_decode_sees_a_window_and_caps_its_scores(
    window: int, softcap: float | None, device: str
) -> None:
    """Windows of one token, of several parts, within a block, and beyond the context."""
    heads = Heads(2, 1, 64)
    kv = a_paged_kv(LENGTHS, heads, dtype=torch.float32, device=device)
    q = random_floats(len(LENGTHS), 2, 64, dtype=torch.float32, device=device, seed=1)

    seen = kernel.paged_decode_attention(
        q, *kv.caches, kv.block_table, kv.context_lens, 0.4, window, softcap
    )

    assert_near(seen, reference(q, kv, 0.4, window, softcap))


def test_scores_beyond_the_range_of_exp_do_not_overflow(device: str) -> None:
    """The softmax is relative to the highest score, which here lies past 2 ** 128."""
    kv = a_paged_kv([150], Heads(1, 1, 64), dtype=torch.float32, device=device)
    q = 100 * random_floats(1, 1, 64, dtype=torch.float32, device=device, seed=1)

    seen = kernel.paged_decode_attention(q, *kv.caches, kv.block_table, kv.context_lens, 1.0)

    assert_near(seen, reference(q, kv, 1.0))


def test_reference_is_the_softmax_over_the_context() -> None:
    """The ground truth itself, head by head from the formula."""
    kv = a_paged_kv([21], Heads(4, 2, 8, block_size=4), dtype=torch.float64, device="cpu")
    q = random_floats(1, 4, 8, dtype=torch.float64, device="cpu", seed=1)

    seen = reference_paged_decode_attention(q, *kv.caches, kv.block_table, kv.context_lens, 0.3)

    tokens = [(int(kv.block_table[0, token // 4]), token % 4) for token in range(21)]
    for head in range(4):
        k = torch.stack([kv.k_cache[at][head // 2] for at in tokens])
        v = torch.stack([kv.v_cache[at][head // 2] for at in tokens])
        weights = torch.exp(k @ q[0, head] * 0.3)
        torch.testing.assert_close(seen[0, head], weights @ v / weights.sum())


def test_reference_sees_the_last_tokens_of_the_window_with_capped_scores() -> None:
    """The ground truth itself, from the formula: 6 of 21 tokens."""
    kv = a_paged_kv([21], Heads(1, 1, 8, block_size=4), dtype=torch.float64, device="cpu")
    q = random_floats(1, 1, 8, dtype=torch.float64, device="cpu", seed=1)

    seen = reference_paged_decode_attention(
        q, *kv.caches, kv.block_table, kv.context_lens, 0.3, 6, 0.5
    )

    tokens = [(int(kv.block_table[0, token // 4]), token % 4) for token in range(15, 21)]
    k = torch.stack([kv.k_cache[at][0] for at in tokens])
    v = torch.stack([kv.v_cache[at][0] for at in tokens])
    weights = torch.exp(0.5 * torch.tanh(k @ q[0, 0] * 0.3 / 0.5))
    torch.testing.assert_close(seen[0, 0], weights @ v / weights.sum())


def test_a_device_that_holds_fewer_programs_than_kv_heads_does_them_all(device: str) -> None:
    """A slice of a GPU with few multiprocessors, and a model whose heads share nothing."""
    heads = Heads(9, 9, 16)
    kv = a_paged_kv([150, 17], heads, dtype=torch.float32, device=device)
    q = random_floats(2, 9, 16, dtype=torch.float32, device=device, seed=1)

    with blocks_of.as_if(SHIPPED, Gpu("a slice", (9, 0), 4)):
        seen = kernel.paged_decode_attention(q, *kv.caches, kv.block_table, kv.context_lens, 0.25)

    assert_near(seen, reference(q, kv, 0.25))


def test_decode_writes_where_it_is_told(device: str) -> None:
    """A step's decodes and prompts share one result: nothing joins them afterwards."""
    heads = Heads(4, 2, 64)
    kv = a_paged_kv(LENGTHS, heads, dtype=torch.float32, device=device)
    q = random_floats(len(LENGTHS), 4, 64, dtype=torch.float32, device=device, seed=1)
    out = torch.ones(len(LENGTHS) + 2, 4, 64, device=device)

    kernel.paged_decode_attention(
        q, *kv.caches, kv.block_table, kv.context_lens, 0.125, out=out[:-2]
    )

    assert_near(out[:-2], reference(q, kv, 0.125))
    assert (out[-2:] == 1).all()


def test_one_plan_serves_every_layer(device: str) -> None:
    """Whoever joins a row's parts leaves the counters as they were."""
    heads = Heads(4, 2, 64)
    kv = a_paged_kv(LENGTHS, heads, dtype=torch.float32, device=device)
    layers = [
        random_floats(len(LENGTHS), 4, 64, dtype=torch.float32, device=device, seed=seed)
        for seed in range(3)
    ]
    plan = kernel.plan_decode_attention(layers[0], kv.k_cache, kv.context_lens)
    assert plan is not None

    for q in layers:
        seen = kernel.paged_decode_attention(
            q, *kv.caches, kv.block_table, kv.context_lens, 0.125, plan=plan
        )
        assert_near(seen, reference(q, kv, 0.125))
        assert not plan.arrived.any()


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    lengths=st.lists(st.integers(0, 700), min_size=1, max_size=6),
    window=st.sampled_from([None, 1, 130, 400]),
    num_kv_heads=st.sampled_from([1, 2, 3]),
)
def test_every_program_reads_as_much_as_the_others(
    device: str, lengths: list[int], window: int | None, num_kv_heads: int
) -> None:
    """Runs are of equal length, cover every unit once, and name the rows that hold them."""
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    k_cache = torch.zeros(1, 16, num_kv_heads, 64, device=device)

    plan = kernel.plan_decode_attention(k_cache[0, 0], k_cache, lens, window)
    assert plan is not None

    units = [-(-min(length, window or length) // UNIT) for length in lengths]
    ends = list(itertools.accumulate(units))
    assert plan.ends.tolist() == ends
    assert not plan.arrived.any()
    num_runs = len(plan.runs)
    bounds = [run * ends[-1] // num_runs for run in range(num_runs + 1)]
    holders = [row for row, count in enumerate(units) for _ in range(count)]
    for run, (begin, end) in enumerate(itertools.pairwise(bounds)):
        assert begin == end or plan.runs[run].tolist() == [holders[begin], holders[end - 1]]
