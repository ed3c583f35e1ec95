"""The ops compiled for the CPU, beside the references in plain torch."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from paceline_kernels import cpu
from paceline_kernels.activation import reference_gelu_tanh_mul, reference_silu_mul
from paceline_kernels.cpu import NativeOps, native_ops
from paceline_kernels.norm import reference_add_rms_norm, reference_rms_norm
from paceline_testing.kernel_cases import assert_near, random_floats

EPS = 1e-5
BLOCK_SIZE = 8
THREADS = [1, 2]


@pytest.fixture(params=THREADS, ids=lambda threads: f"{threads} threads")
def native(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield ops
    torch.set_num_threads(before)


def _floats(*sizes: int, seed: int = 0) -> Tensor:
    return random_floats(*sizes, dtype=torch.float32, device="cpu", seed=seed)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 576), (64, 577)], ids=str)
def test_norms_agree_with_float64(native: NativeOps, shape: tuple[int, int]) -> None:
    """Widths that do not fill the last lanes, and enough rows to wake a second thread."""
    x, residual, weight = _floats(*shape), _floats(*shape, seed=1), _floats(shape[1], seed=2)
    wanted = reference_rms_norm(x.double(), weight.double(), EPS)
    wanted_sum = reference_add_rms_norm(x.double(), residual.double(), weight.double(), EPS)

    assert_near(native.rms_norm(x, weight, EPS), wanted)
    normed, total = native.add_rms_norm(x, residual, weight, EPS)

    assert_near(normed, wanted_sum[0])
    assert_near(total, wanted_sum[1])


def test_heads_are_normed_where_they_lie(native: NativeOps) -> None:
    """Views of one wider tensor, as q and k are: the norm is over each head of theirs."""
    heads, weight = _floats(6, 5, 12), _floats(12, seed=2)
    q = heads[:, 1:4]

    normed = native.rms_norm(q, weight, EPS)

    assert_near(normed, reference_rms_norm(q.double(), weight.double(), EPS))


@pytest.mark.parametrize("shape", [(1, 2), (3, 34), (40, 3072)], ids=str)
def test_gates_agree_with_float64(native: NativeOps, shape: tuple[int, int]) -> None:
    """From where the exponential is nothing to where it is past float32."""
    x = _floats(*shape) * 30
    x[0, 0] = -200.0

    assert_near(native.silu_mul(x), reference_silu_mul(x.double()))
    assert_near(native.gelu_tanh_mul(x), reference_gelu_tanh_mul(x.double()))


def test_what_is_not_a_number_stays_so(native: NativeOps) -> None:
    """The sampler ends a request whose scores are not numbers: no op may make numbers of them."""
    nan = torch.full((1, 32), torch.nan)

    assert native.silu_mul(nan).isnan().all()
    assert native.gelu_tanh_mul(nan).isnan().all()
    assert native.rms_norm(nan, torch.ones(32), EPS).isnan().all()


def _attend(
    native: NativeOps,
    lengths: list[int],
    heads: tuple[int, int, int],
    window: int | None,
    *,
    poison: float = torch.nan,
) -> tuple[Tensor, Tensor]:
    """Seen and wanted, over shuffled blocks with `poison` in every slot that no row may read."""
    q_heads, kv_heads, size = heads
    num_blocks = sum(-(-length // BLOCK_SIZE) for length in lengths) + 1
    order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(3)) + 1
    k, v = (_floats(num_blocks, BLOCK_SIZE, kv_heads, size, seed=s) for s in (4, 5))
    table = torch.zeros(len(lengths), max(lengths) // BLOCK_SIZE + 1, dtype=torch.int32)
    qkv = _floats(len(lengths), (q_heads + 2 * kv_heads) * size, seed=6)
    wanted, used = torch.empty(len(lengths), q_heads * size, dtype=torch.float64), 0
    k[0] = v[0] = poison
    for row, length in enumerate(lengths):
        count = -(-length // BLOCK_SIZE)
        blocks = order[used : used + count]
        used += count
        table[row, :count] = blocks.int()
        if length % BLOCK_SIZE:
            k[blocks[-1], length % BLOCK_SIZE :] = poison
            v[blocks[-1], length % BLOCK_SIZE :] = poison
        first = 0 if window is None else max(0, length - window)
        keys, values = (
            x[blocks].flatten(0, 1)[first:length].double().transpose(0, 1) for x in (k, v)
        )
        q = qkv[row, : q_heads * size].double().view(kv_heads, -1, size)
        weights = (q @ keys.transpose(1, 2) * 0.2).softmax(dim=-1)
        wanted[row] = (weights @ values).flatten()
    out = torch.empty(len(lengths), q_heads * size)
    native.paged_decode_attention(
        qkv=qkv,
        num_q_heads=q_heads,
        k_cache=k,
        v_cache=v,
        block_table=table,
        context_lens=torch.tensor(lengths, dtype=torch.int32),
        rows=len(lengths),
        out=out,
        scale=0.2,
        window=window,
    )
    return out, wanted


@pytest.mark.parametrize("heads", [(9, 3, 64), (4, 2, 64), (2, 2, 128), (6, 1, 16)], ids=str)
@pytest.mark.parametrize("lengths", [[1], [8, 3, 40], [17, 1, 9, 100, 64, 33]], ids=str)
@pytest.mark.parametrize("window", [None, 1, 12])
def test_decode_attention_agrees_with_float64(
    native: NativeOps, lengths: list[int], heads: tuple[int, int, int], window: int | None
) -> None:
    """One row and many, which threads share in two ways; ends and windows inside a block."""
    seen, wanted = _attend(native, lengths, heads, window)

    assert_near(seen, wanted)


@pytest.mark.parametrize("with_norms", [False, True])
def test_rope_and_store_agrees_with_float64(native: NativeOps, *, with_norms: bool) -> None:
    """Q is turned where it is; k and v land in their slots, and no other slot changes."""
    tokens, q_heads, kv_heads, size = 70, 4, 2, 32
    qkv, angles = _floats(tokens, (q_heads + 2 * kv_heads) * size), _floats(100, size // 2, seed=1)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    norms = (_floats(size, seed=2), _floats(size, seed=3)) if with_norms else None
    caches = [torch.full((16, BLOCK_SIZE, kv_heads, size), 7.0) for _ in range(2)]
    positions = torch.arange(tokens).flip(0) + 20
    slots = torch.randperm(16 * BLOCK_SIZE)[:tokens]
    wanted = qkv.double().view(tokens, -1, size)

    native.rope_and_store_kv(
        qkv=qkv,
        positions=positions,
        slots=slots,
        cos_sin=cos_sin,
        norms=norms,
        eps=EPS,
        k_cache=caches[0],
        v_cache=caches[1],
    )

    q, k, v = wanted.split([q_heads, kv_heads, kv_heads], dim=1)
    if norms is not None:
        q, k = (
            reference_rms_norm(x, norm.double(), EPS) for x, norm in zip((q, k), norms, strict=True)
        )
    cos, sin = cos_sin[positions].double().unsqueeze(1).chunk(2, dim=-1)

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    assert_near(qkv[:, : q_heads * size], turned(q).flatten(1))
    for cache, stored in ((caches[0], turned(k)), (caches[1], v)):
        expected = torch.full((16 * BLOCK_SIZE, kv_heads, size), 7.0, dtype=torch.float64)
        expected[slots] = stored
        assert_near(cache.flatten(0, 1), expected)


def test_a_wrong_tensor_is_refused(native: NativeOps) -> None:
    """C would read past its end."""
    with pytest.raises(ValueError, match=r"weight must be contiguous \(4,\)"):
        native.rms_norm(torch.ones(2, 4), torch.ones(3), EPS)
    with pytest.raises(ValueError, match="x must be contiguous"):
        native.silu_mul(torch.ones(4, 6).t())
    with pytest.raises(ValueError, match=r"got .*float64"):
        native.rms_norm(torch.ones(2, 4).double(), torch.ones(4), EPS)


def test_without_a_compiler_or_builds_there_are_no_native_ops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The engine runs on torch's ops, and the log says why."""
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("PACELINE_NATIVE_DIR", "/no/such/folder")
    for cached in (cpu.native_ops, cpu._loaded):
        cached.cache_clear()
    try:
        assert native_ops() is None
        assert cpu.op_library().origin == "torch"
        assert "no-such-compiler" in caplog.text
    finally:
        for cached in (cpu.native_ops, cpu._loaded):
            cached.cache_clear()
