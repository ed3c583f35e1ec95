"""What only a GPU can show: bfloat16 at a model's sizes, CUDA graphs, and wide addresses."""

import pytest
import torch
from torch import Tensor

import paceline_kernels as kernels
from paceline_kernels.decode_attention import reference_paged_decode_attention
from paceline_kernels.norm import kernel as norm_kernel
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_testing.kernel_cases import Heads, PagedKV, a_paged_kv, random_floats

pytestmark = pytest.mark.gpu

MODELS = [
    pytest.param(Heads(9, 3, 64), id="smollm2-135m"),
    pytest.param(Heads(32, 8, 128), id="llama-3.1-8b"),
    pytest.param(Heads(8, 4, 256), id="head-256"),
]
HALVES = [pytest.param(torch.bfloat16, id="bfloat16"), pytest.param(torch.float16, id="float16")]
# Rounding the inputs of a sum of random terms to bfloat16 moves it by some thousandths; leaving out
# one of a thousand tokens moves it by a thirtieth.
MAX_RELATIVE_ERROR = 1e-2


def relative_error(seen: Tensor, wanted: Tensor) -> float:
    return float((seen.double() - wanted).norm() / wanted.norm())


def decode(q: Tensor, kv: PagedKV) -> Tensor:
    scale = q.shape[-1] ** -0.5
    return kernels.paged_decode_attention(q, *kv.caches, kv.block_table, kv.context_lens, scale)


def decode_in_float64(q: Tensor, kv: PagedKV) -> Tensor:
    return reference_paged_decode_attention(
        q.double(), *kv.double().caches, kv.block_table, kv.context_lens, q.shape[-1] ** -0.5
    )


@pytest.mark.parametrize("heads", MODELS)
@pytest.mark.parametrize("dtype", HALVES)
def test_decode_agrees_with_float64_at_the_sizes_of_a_model(
    heads: Heads, dtype: torch.dtype
) -> None:
    """One long context among short ones: every number of parts that a row can have."""
    lengths = [16000, *range(1, 1100, 23)]
    kv = a_paged_kv(lengths, heads, dtype=dtype, device="cuda")
    q = random_floats(len(lengths), heads.num_q, heads.size, dtype=dtype, device="cuda", seed=1)

    assert relative_error(decode(q, kv), decode_in_float64(q, kv)) < MAX_RELATIVE_ERROR


@pytest.mark.parametrize("heads", MODELS)
@pytest.mark.parametrize("dtype", HALVES)
def test_prefill_agrees_with_float64_at_the_sizes_of_a_model(
    heads: Heads, dtype: torch.dtype
) -> None:
    """Whole prompts and later chunks, many tiles each, none a multiple of the tile."""
    chunks = [(1500, 1500), (333, 2111), (1, 700), (64, 64), (127, 1999)]
    kv = a_paged_kv([context for _, context in chunks], heads, dtype=dtype, device="cuda")
    ends = torch.tensor([0, *(tokens for tokens, _ in chunks)], device="cuda").cumsum(0)
    cu_seqlens, scale = ends.to(torch.int32), heads.size**-0.5
    q = random_floats(int(ends[-1]), heads.num_q, heads.size, dtype=dtype, device="cuda", seed=1)

    seen = kernels.paged_prefill_attention(
        q, *kv.caches, kv.block_table, cu_seqlens, kv.context_lens, scale
    )

    wanted = reference_paged_prefill_attention(
        q.double(), *kv.double().caches, kv.block_table, cu_seqlens, kv.context_lens, scale
    )
    assert relative_error(seen, wanted) < MAX_RELATIVE_ERROR


def test_a_captured_decode_serves_other_batches() -> None:
    """The grid follows from shapes alone: a graph is replayed with contexts that it never saw."""
    heads = Heads(32, 8, 128)
    captured = a_paged_kv([1000, 1000, 1000], heads, dtype=torch.bfloat16, device="cuda")
    q = random_floats(3, heads.num_q, heads.size, dtype=torch.bfloat16, device="cuda", seed=1)
    decode(q, captured)  # compiles, which a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = decode(q, captured)

    for lengths in ([1, 0, 1000], [17, 129, 513], [1000, 1000, 1000]):
        captured.context_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        q.copy_(q.flip(0))
        graph.replay()
        assert relative_error(out, decode_in_float64(q, captured)) < MAX_RELATIVE_ERROR


def test_blocks_past_two_to_the_31_elements_are_reached() -> None:
    """Where a large device's cache ends, an index of 32 bits has long wrapped around."""
    block_elements = 2 * 16 * 8 * 128
    num_blocks = 2**31 // block_elements + 2
    if torch.cuda.mem_get_info()[0] < 3 * num_blocks * block_elements:
        pytest.skip("needs 6.5 GB of free GPU memory")
    kv = torch.zeros(num_blocks, 2, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    k_cache, v_cache = kv.unbind(1)
    qkv = random_floats(1, 48 * 128, dtype=torch.bfloat16, device="cuda")
    angles = torch.cat((torch.ones(1, 64), torch.zeros(1, 64)), dim=1).to("cuda")
    last = num_blocks - 1

    q = kernels.rope_and_store_kv(
        qkv,
        torch.zeros(1, dtype=torch.int64, device="cuda"),
        angles,
        torch.tensor([last * 16], device="cuda"),
        k_cache,
        v_cache,
        num_q_heads=32,
        num_kv_heads=8,
    )
    table = torch.tensor([[last]], dtype=torch.int32, device="cuda")
    one = torch.ones(1, dtype=torch.int32, device="cuda")
    seen = kernels.paged_decode_attention(q, k_cache, v_cache, table, one, 1.0)

    _, k, v = torch.split(qkv.view(48, 128), [32, 8, 8])
    assert torch.equal(k_cache[last, 0], k)
    assert torch.equal(v_cache[last, 0], v)
    # The only token has all the weight: each group of four heads gives its value.
    torch.testing.assert_close(seen[0].view(8, 4, 128), v[:, None].expand(8, 4, 128))


def test_a_gpu_tensor_gets_the_kernel() -> None:
    """The reference rounds elsewhere, so only the kernel gives the kernel's bits."""
    x = random_floats(64, 4096, dtype=torch.bfloat16, device="cuda")
    weight = random_floats(4096, dtype=torch.bfloat16, device="cuda", seed=1)

    seen = kernels.rms_norm(x, weight, 1e-5)

    assert torch.equal(seen, norm_kernel.rms_norm(x, weight, 1e-5))
