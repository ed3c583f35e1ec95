"""The compiled ops in bfloat16, beside float64; attention is in test_cpu_bfloat16_attention."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from paceline_kernels.activation import reference_gelu_tanh_mul, reference_silu_mul
from paceline_kernels.cpu import NativeOps, native_ops
from paceline_kernels.fp8 import quantize_heads
from paceline_kernels.norm import reference_add_rms_norm, reference_rms_norm
from paceline_kernels.rotary.reference import rope_and_store_kv as reference_rope_and_store_kv
from paceline_testing.kernel_cases import assert_within_ulps, random_floats
from paceline_testing.pairs import plain_keys, plain_values

EPS = 1e-5
BLOCK_SIZE = 16


@pytest.fixture(params=[1, 2], ids=lambda threads: f"{threads} threads")
def native(request: pytest.FixtureRequest) -> Iterator[NativeOps]:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield ops
    torch.set_num_threads(before)


def _floats(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return random_floats(*sizes, dtype=dtype, device="cpu", seed=seed)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 576), (64, 577), (2, 8192)], ids=str)
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_norms_agree_with_float64(
    native: NativeOps, shape: tuple[int, int], weight_dtype: torch.dtype
) -> None:
    """The sum is rounded once; the norm is of the rounded sum, as the next layer reads it."""
    x, residual = _floats(*shape), _floats(*shape, seed=1)
    weight = _floats(shape[1], seed=2, dtype=weight_dtype)
    total = x + residual

    assert_within_ulps(
        native.rms_norm(x, weight, EPS), reference_rms_norm(x.double(), weight.double(), EPS)
    )
    normed, summed = native.add_rms_norm(x, residual, weight, EPS)

    assert torch.equal(summed, total)
    wanted, _ = reference_add_rms_norm(torch.zeros(1), total.double(), weight.double(), EPS)
    assert_within_ulps(normed, wanted)


def test_a_norm_rounds_where_torchs_does(native: NativeOps) -> None:
    """Before the product with a weight in bfloat16, and after it: the bits that models know."""
    x, weight = _floats(40, 576), _floats(576, seed=2)

    same = native.rms_norm(x, weight, EPS) == reference_rms_norm(x, weight, EPS)

    # The sums run in another order, which seldom turns a bit.
    assert same.double().mean() > 0.999


def test_embedded_rows_are_scaled_and_normed(native: NativeOps) -> None:
    """Tokens in any order, some of them twice."""
    embedding, weight = _floats(30, 48), _floats(48, seed=1)
    tokens = torch.tensor([7, 0, 7, 29])

    normed, rows = native.embed_rms_norm(tokens, embedding, weight, EPS, 3.0)

    assert torch.equal(rows, embedding[tokens] * 3.0)
    assert_within_ulps(normed, reference_rms_norm(rows.double(), weight.double(), EPS))


@pytest.mark.parametrize("shape", [(1, 2), (3, 34), (40, 3072)], ids=str)
def test_gates_agree_with_float64(native: NativeOps, shape: tuple[int, int]) -> None:
    """From where the exponential is nothing to where it is past float32; rounded once."""
    x = _floats(*shape) * 30
    x[0, 0] = -200.0

    assert_within_ulps(native.silu_mul(x), reference_silu_mul(x.double()), ulps=1)
    assert_within_ulps(native.gelu_tanh_mul(x), reference_gelu_tanh_mul(x.double()), ulps=1)


def test_what_is_not_a_number_stays_so(native: NativeOps) -> None:
    """Also through the rounding, which adds to the bits of a number."""
    nan = torch.full((1, 46), torch.nan, dtype=torch.bfloat16)
    nan.view(torch.int16)[0, 5] = -1  # whose bits are all set

    assert native.silu_mul(nan).isnan().all()
    assert native.gelu_tanh_mul(nan).isnan().all()
    assert native.rms_norm(nan, torch.ones(46), EPS).isnan().all()


@pytest.mark.parametrize("norm_dtype", [None, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("head_size", [16, 64])
@pytest.mark.parametrize("is_fp8", [False, True], ids=["pairs", "fp8"])
def test_rope_and_store_agrees_with_float64(
    native: NativeOps, norm_dtype: torch.dtype | None, head_size: int, *, is_fp8: bool
) -> None:
    """Q is turned where it is; k and v land in their slots, and no other slot changes."""
    tokens, q_heads, kv_heads, num_blocks = 70, 4, 2, 9
    qkv = _floats(tokens, (q_heads + 2 * kv_heads) * head_size)
    angles = _floats(100, head_size // 2, seed=1, dtype=torch.float32)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    norms = None
    if norm_dtype is not None:
        norms = (
            _floats(head_size, seed=2, dtype=norm_dtype),
            _floats(head_size, seed=3, dtype=norm_dtype),
        )
    positions = torch.arange(tokens).flip(0) + 20
    slots = torch.randperm(num_blocks * BLOCK_SIZE, generator=torch.Generator().manual_seed(1))
    slots = slots[:tokens]
    plain = (num_blocks, BLOCK_SIZE, kv_heads, head_size)
    q_norm, k_norm = (None, None) if norms is None else (each.double() for each in norms)
    wanted_k, wanted_v = (torch.full(plain, 7.0, dtype=torch.float64) for _ in range(2))
    wanted_q = reference_rope_and_store_kv(
        qkv.double(),
        positions,
        cos_sin.double(),
        slots,
        wanted_k,
        wanted_v,
        num_q_heads=q_heads,
        num_kv_heads=kv_heads,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=EPS,
    )
    exponents = None
    pairs = (num_blocks, kv_heads, head_size // 2, BLOCK_SIZE, 2)
    k_cache = torch.full(pairs, 7.0, dtype=torch.bfloat16)
    v_cache = k_cache.clone().view(num_blocks, kv_heads, BLOCK_SIZE // 2, head_size, 2)
    if is_fp8:
        k_cache, k_exponents = quantize_heads(torch.full(plain, 7.0))
        v_cache, exponents = k_cache.clone(), (k_exponents, k_exponents.clone())

    native.rope_and_store_kv(
        qkv=qkv,
        positions=positions,
        slots=slots,
        cos_sin=cos_sin,
        norms=norms,
        eps=EPS,
        k_cache=k_cache,
        v_cache=v_cache,
        exponents=exponents,
    )

    q, k, _ = qkv.split([q_heads * head_size, kv_heads * head_size, kv_heads * head_size], dim=1)
    assert_within_ulps(q, wanted_q.flatten(1))
    if exponents is None:
        assert_within_ulps(plain_keys(k_cache), wanted_k)
        assert torch.equal(plain_values(v_cache).double(), wanted_v)
        return
    # What is stored is the rounded key, as torch stores it.
    codes, powers = quantize_heads(k.unflatten(1, (kv_heads, head_size)))
    seen = k_cache.flatten(0, 1)[slots], exponents[0].flatten(0, 1)[slots]
    assert torch.equal(seen[0].view(torch.uint8), codes.view(torch.uint8))
    assert torch.equal(seen[1], powers)
    written, _ = quantize_heads(wanted_v)
    assert torch.equal(v_cache.view(torch.uint8), written.view(torch.uint8))


def test_a_wrong_tensor_is_refused(native: NativeOps) -> None:
    """C would read past its end."""
    x = torch.ones(2, 4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"weight must be contiguous \(4,\)"):
        native.rms_norm(x, torch.ones(3), EPS)
    with pytest.raises(ValueError, match=r"residual .* torch.bfloat16, got .*float32"):
        native.add_rms_norm(x, torch.ones(2, 4), torch.ones(4), EPS)
    with pytest.raises(ValueError, match=r"weight .* torch.float32, got .*float16"):
        native.rms_norm(x, torch.ones(4).half(), EPS)
    cache = torch.zeros(1, 1, 264, 16, 2, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="cannot rotate heads of 528"):
        native.rope_and_store_kv(
            qkv=torch.zeros(1, 3 * 528, dtype=torch.bfloat16),
            positions=torch.zeros(1, dtype=torch.int64),
            slots=torch.zeros(1, dtype=torch.int64),
            cos_sin=torch.zeros(1, 528),
            norms=None,
            eps=EPS,
            k_cache=cache,
            v_cache=cache.view(1, 1, 8, 528, 2),
        )
