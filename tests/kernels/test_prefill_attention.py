import pytest
import torch

from paceline_kernels import paged_decode_attention
from paceline_kernels.decode_attention import reference_paged_decode_attention
from paceline_kernels.prefill_attention import kernel, reference_paged_prefill_attention
from paceline_testing.kernel_cases import (
    DTYPES,
    Heads,
    PagedKV,
    a_paged_kv,
    assert_near,
    random_floats,
)

# (tokens of the chunk, tokens of the context with it): whole prompts, later chunks, one token,
# no token, and chunks that begin or end within a block and within a tile.
CHUNKS = ((1, 1), (17, 17), (1, 40), (0, 12), (33, 90), (5, 38))


def reference(
    q: torch.Tensor,
    kv: PagedKV,
    cu_seqlens: torch.Tensor,
    scale: float,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    return reference_paged_prefill_attention(
        q.double(),
        *kv.double().caches,
        kv.block_table,
        cu_seqlens,
        kv.context_lens,
        scale,
        window,
        softcap,
    )


def starts_of(chunks: tuple[tuple[int, int], ...], device: str) -> torch.Tensor:
    lengths = torch.tensor([0, *(tokens for tokens, _ in chunks)])
    return lengths.cumsum(0).to(torch.int32).to(device)


HEADS = [
    Heads(9, 3, 64),
    *(Heads(group, 1, 64, block_size=32) for group in (1, 2, 5, 6, 7, 8)),
    Heads(4, 1, 128),
    Heads(2, 2, 96),
    Heads(2, 1, 256, block_size=32),
]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_attention_agrees_with_float64(
    heads: Heads, dtype: torch.dtype, device: str
) -> None:
    """Several chunks in one launch, each causal from where its own context stands."""
    kv = a_paged_kv([context for _, context in CHUNKS], heads, dtype=dtype, device=device)
    cu_seqlens = starts_of(CHUNKS, device)
    num_tokens = int(cu_seqlens[-1])
    q = random_floats(num_tokens, heads.num_q, heads.size, dtype=dtype, device=device, seed=1)
    scale = heads.size**-0.5

    seen = kernel.paged_prefill_attention(
        q, *kv.caches, kv.block_table, cu_seqlens, kv.context_lens, scale
    )

    assert_near(seen, reference(q, kv, cu_seqlens, scale))


@pytest.mark.parametrize("window", [1, 4, 33, 70, 500])
@pytest.mark.parametrize("softcap", [None, 0.8])
def test_prefill_sees_a_window_and_caps_its_scores(
    window: int, softcap: float | None, device: str
) -> None:
    """A tile's last row may see none of the tokens that its first row begins with."""
    heads = Heads(2, 1, 64)
    kv = a_paged_kv([length for _, length in CHUNKS], heads, dtype=torch.float32, device=device)
    cu_seqlens = starts_of(CHUNKS, device)
    q = random_floats(int(cu_seqlens[-1]), 2, 64, dtype=torch.float32, device=device, seed=1)

    seen = kernel.paged_prefill_attention(
        q, *kv.caches, kv.block_table, cu_seqlens, kv.context_lens, 0.4, window, softcap
    )

    assert_near(seen, reference(q, kv, cu_seqlens, 0.4, window=window, softcap=softcap))


@pytest.mark.parametrize("window", [1, 5, 100])
def test_prefill_and_decode_see_the_same_window(window: int) -> None:
    """The references agree: each token of a chunk, alone, is a decode."""
    kv = a_paged_kv([40], Heads(2, 1, 8), dtype=torch.float64, device="cpu")
    q = random_floats(40, 2, 8, dtype=torch.float64, device="cpu", seed=1)

    together = reference(q, kv, starts_of(((40, 40),), "cpu"), 0.4, window=window, softcap=0.6)
    alone = [
        reference_paged_decode_attention(
            q[i : i + 1],
            *kv.caches,
            kv.block_table,
            torch.tensor([i + 1], dtype=torch.int32),
            0.4,
            window,
            0.6,
        )
        for i in range(40)
    ]

    torch.testing.assert_close(together, torch.cat(alone))


def test_tokens_past_the_last_chunk_harm_nobody(device: str) -> None:
    """A step that is padded to a captured size carries tokens of no sequence."""
    kv = a_paged_kv([20], Heads(2, 1, 64), dtype=torch.float32, device=device)
    cu_seqlens = starts_of(((3, 20),), device)
    q = random_floats(40, 2, 64, dtype=torch.float32, device=device, seed=1)

    seen = kernel.paged_prefill_attention(
        q, *kv.caches, kv.block_table, cu_seqlens, kv.context_lens, 0.125
    )

    assert_near(seen[:3], reference(q, kv, cu_seqlens, 0.125)[:3])


@pytest.mark.parametrize("decodes", [1, 31, 200])
def test_tokens_before_the_first_chunk_are_left_alone(decodes: int, device: str) -> None:
    """A step that is replayed has its decodes there, as many as it has; chunks may be missing."""
    heads, chunks = Heads(2, 1, 64), (*CHUNKS, (0, 0), (0, 0))
    kv = a_paged_kv([length for _, length in chunks], heads, dtype=torch.float32, device=device)
    cu_seqlens = decodes + starts_of(chunks, device)
    num_tokens = int(cu_seqlens[-1])
    q = random_floats(num_tokens, 2, 64, dtype=torch.float32, device=device, seed=1)
    out = torch.full_like(q, 7.0)

    kernel.paged_prefill_attention(
        q, *kv.caches, kv.block_table, cu_seqlens, kv.context_lens, 0.125, out=out
    )

    assert (out[:decodes] == 7.0).all()
    wanted = reference(q[decodes:], kv, cu_seqlens - decodes, 0.125)
    assert_near(out[decodes:], wanted)


def test_prefill_writes_where_it_is_told(device: str) -> None:
    """A step's decodes and prompts share one result: nothing joins them afterwards."""
    kv = a_paged_kv([20], Heads(2, 1, 64), dtype=torch.float32, device=device)
    cu_seqlens = starts_of(((3, 20),), device)
    q = random_floats(3, 2, 64, dtype=torch.float32, device=device, seed=1)
    out = torch.zeros(5, 2, 64, device=device)

    kernel.paged_prefill_attention(
        q, *kv.caches, kv.block_table, cu_seqlens, kv.context_lens, 0.125, out=out[2:]
    )

    assert_near(out[2:], reference(q, kv, cu_seqlens, 0.125))
    assert not out[:2].any()


def test_reference_attends_to_no_later_token() -> None:
    """The ground truth itself: a chunk in one call equals its tokens decoded one by one."""
    kv = a_paged_kv([21], Heads(4, 2, 8, block_size=4), dtype=torch.float64, device="cpu")
    q = random_floats(6, 4, 8, dtype=torch.float64, device="cpu", seed=1)

    seen = reference(q, kv, torch.tensor([0, 6], dtype=torch.int32), 0.3)

    for token in range(6):
        until = torch.tensor([21 - 5 + token], dtype=torch.int32)
        alone = paged_decode_attention(q[token, None], *kv.caches, kv.block_table, until, 0.3)
        torch.testing.assert_close(seen[token], alone[0])
