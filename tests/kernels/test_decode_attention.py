import pytest
import torch

from paceline_kernels.decode_attention import kernel, reference_paged_decode_attention
from paceline_kernels.decode_attention.kernel import num_splits
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


BLOCKS = {"wanted_programs": 1024, "part_tokens": 128}


@pytest.mark.parametrize("num_kv_heads", [1, 3, 8])
def test_all_batch_sizes_share_a_few_numbers_of_splits(num_kv_heads: int) -> None:
    """Each number of splits is a variant to compile, and none may compile while serving."""
    seen = {
        num_splits(programs=rows * num_kv_heads, max_len=8192, **BLOCKS) for rows in range(1, 513)
    }

    assert seen == {8, 16, 32}


def test_a_short_context_is_not_split_for_nothing() -> None:
    """A part below the least size would never have a token."""
    assert num_splits(programs=8, max_len=200, **BLOCKS) == 2
    assert num_splits(programs=8, max_len=64, **BLOCKS) == 1
