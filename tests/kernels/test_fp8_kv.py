"""Keys and values in FP8: what is stored, by whom, and what attention makes of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline_kernels.cpu import NativeOps, native_ops
from paceline_kernels.decode_attention import kernel as decode_kernel
from paceline_kernels.decode_attention import reference_paged_decode_attention
from paceline_kernels.fp8 import CODES, EXPONENTS, dequantize_heads, quantize_heads, widen
from paceline_kernels.prefill_attention import kernel as prefill_kernel
from paceline_kernels.prefill_attention import reference_paged_prefill_attention
from paceline_kernels.rotary import kernel as rotary_kernel
from paceline_kernels.rotary import reference_rope_and_store_kv
from paceline_testing.kernel_cases import (
    DTYPES,
    Heads,
    PagedKV,
    a_paged_kv,
    assert_near,
    random_floats,
)

pytestmark = pytest.mark.fp8

Op = Callable[..., Tensor]
Bounds = tuple[int | None, float | None]
"""Window and soft cap."""

LENGTHS = (1, 17, 150, 16)
HEADS = [Heads(9, 3, 64), Heads(8, 2, 128), Heads(2, 2, 96), Heads(2, 1, 256, block_size=32)]
SIZES = [0.0, 1e-38, 3e-5, 0.02, 1.0, 448.0, 449.0, 1e5, 3e38]  # of a head's largest value


@pytest.fixture
def native() -> NativeOps:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    return ops


def test_every_code_has_the_value_that_torch_gives_it() -> None:
    """All but the two that are no number, which nothing writes."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes & 0x7F != 0x7F].view(CODES)

    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        torch.testing.assert_close(widen(codes, dtype), codes.to(dtype), rtol=0, atol=0)


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    st.integers(-60, 60),
)
def test_a_value_moves_by_half_of_its_last_bit_at_most(values: list[float], power: int) -> None:
    """It has 4 bits; below 2^-14 of the head's largest value, by as much as there."""
    head = torch.tensor(values, dtype=torch.float64) * 2.0**power
    head = head.float().clamp(-(2.0**127), 2.0**127)

    restored = dequantize_heads(*quantize_heads(head), torch.float64)

    largest = max(float(head.abs().max()), 2.0**-117)
    bound = torch.maximum(head.double().abs() / 16, torch.tensor(largest * 2.0**-17))
    assert ((restored - head.double()).abs() <= bound).all()


def test_the_largest_value_uses_the_last_power_of_two() -> None:
    """1.75 * 2^n fits with an exponent that anything beyond is too large for."""
    heads = torch.tensor([[448.0], [448.1], [1.75], [1.7500002], [0.0]])

    codes, exponents = quantize_heads(heads)

    assert exponents.tolist() == [127, 128, 119, 120, 1]
    assert codes.float().flatten().tolist() == [448.0, 224.0, 448.0, 224.0, 0.0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_head_without_a_number_is_nan(value: float) -> None:
    """The sampler ends a request whose scores are no numbers: a code must not make them one."""
    codes, exponents = quantize_heads(torch.tensor([[1.0, value], [1.0, 2.0]]))

    assert exponents.tolist() == [255, 120]
    assert dequantize_heads(codes, exponents, torch.float32).isnan().tolist() == [
        [True, True],
        [False, False],
    ]


def _stored_by_kernel(qkv: Tensor, heads: Heads, *, fp8: bool) -> tuple[Tensor, ...]:
    """Caches, then exponents, after the Triton kernel's write of tokens that are not turned."""
    shape = (4, heads.block_size, heads.num_kv)
    dtype = CODES if fp8 else qkv.dtype
    caches = [torch.zeros(*shape, heads.size, device=qkv.device).to(dtype) for _ in range(2)]
    exponents = [torch.zeros(shape, dtype=EXPONENTS, device=qkv.device) for _ in range(2)]
    angles = torch.randn(50, heads.size, generator=torch.Generator().manual_seed(7))
    rotary_kernel.rope_and_store_kv(
        qkv,
        torch.arange(len(qkv), device=qkv.device),
        angles.to(qkv.device),
        torch.tensor([0, 40, -1, 16, 33, 31, 63, 1, 2], device=qkv.device),
        caches[0],
        caches[1],
        num_q_heads=heads.num_q,
        num_kv_heads=heads.num_kv,
        exponents=(exponents[0], exponents[1]) if fp8 else None,
    )
    return (*caches, *(exponents if fp8 else ()))


def _assert_same_codes(seen: tuple[Tensor, ...], floats: tuple[Tensor, ...]) -> None:
    for codes, exponents, stored in zip(seen[:2], seen[2:], floats, strict=True):
        wanted_codes, wanted_exponents = quantize_heads(stored)
        # A slot that nobody wrote has the exponent 0, and codes of 0 either way.
        written = exponents != 0
        assert (exponents[written] == wanted_exponents[written]).all()
        assert (codes.view(torch.uint8) == wanted_codes.view(torch.uint8))[written].all()
        assert not stored[~written].any()
        assert written.sum() == 8 * stored.shape[2]


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_stores_the_codes_of_what_it_would_have_stored(
    heads: Heads, dtype: torch.dtype, device: str
) -> None:
    """Bit for bit, at every size that a head's values may have."""
    num_heads = heads.num_q + 2 * heads.num_kv
    qkv = random_floats(9, num_heads * heads.size, dtype=dtype, device=device)
    sizes = torch.tensor(SIZES, device=device).clamp(max=torch.finfo(dtype).max / 20)
    qkv = (qkv.double() * sizes[:, None].double() / 3).to(dtype)

    floats = _stored_by_kernel(qkv, heads, fp8=False)

    _assert_same_codes(_stored_by_kernel(qkv, heads, fp8=True), floats)


def test_the_kernel_stores_nan_of_a_head_without_a_number(device: str) -> None:
    """And leaves the token's other heads alone."""
    qkv = random_floats(9, 3 * 64, dtype=torch.float32, device=device)
    qkv[0, 70] = torch.nan
    qkv[1, 130] = torch.inf

    exponents = _stored_by_kernel(qkv, Heads(1, 1, 64), fp8=True)[2:]

    assert exponents[0].flatten()[[0, 40]].tolist()[0] == 255
    assert exponents[0].flatten()[40] != 255
    assert exponents[1].flatten()[0] != 255
    assert exponents[1].flatten()[40] == 255


def test_the_reference_stores_the_same() -> None:
    """The ground truth itself: what it stores in float64, in codes."""
    heads = Heads(4, 2, 64)
    qkv = random_floats(3, 8 * 64, dtype=torch.float64, device="cpu")
    positions, slots = torch.tensor([4, 2, 9]), torch.tensor([3, -1, 17])
    angles = torch.randn(10, 64, generator=torch.Generator().manual_seed(7)).double()
    exact = torch.zeros(2, 2, 16, 2, 64, dtype=torch.float64)
    codes, stored = exact.to(CODES), torch.zeros(2, 2, 16, 2, dtype=EXPONENTS)

    for caches, exponents in ((exact, None), (codes, (stored[0], stored[1]))):
        reference_rope_and_store_kv(
            qkv,
            positions,
            angles,
            slots,
            *caches,
            num_q_heads=heads.num_q,
            num_kv_heads=heads.num_kv,
            exponents=exponents,
        )

    restored = dequantize_heads(codes, stored, torch.float64)
    assert restored.any()
    torch.testing.assert_close(
        restored, dequantize_heads(*quantize_heads(exact), torch.float64), rtol=0, atol=0
    )


def _decode(op: Op, q: Tensor, kv: PagedKV, bounds: Bounds = (None, None)) -> Tensor:
    window, softcap = bounds
    return op(
        q,
        kv.k_cache,
        kv.v_cache,
        kv.block_table,
        kv.context_lens,
        q.shape[-1] ** -0.5,
        window=window,
        softcap=softcap,
        exponents=kv.exponents,
    )


def _prefill(op: Op, q: Tensor, kv: PagedKV, starts: Tensor, bounds: Bounds) -> Tensor:
    window, softcap = bounds
    return op(
        q,
        kv.k_cache,
        kv.v_cache,
        kv.block_table,
        starts,
        kv.context_lens,
        q.shape[-1] ** -0.5,
        window=window,
        softcap=softcap,
        exponents=kv.exponents,
    )


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bounds", [(None, None), (100, 0.8)], ids=str)
def test_decode_attention_agrees_with_float64(
    heads: Heads, dtype: torch.dtype, bounds: Bounds, device: str
) -> None:
    """From the same codes: attention loses nothing more, NaN in every slot without a token."""
    kv = a_paged_kv(LENGTHS, heads, dtype=dtype, device=device).fp8()
    q = random_floats(len(LENGTHS), heads.num_q, heads.size, dtype=dtype, device=device, seed=1)

    seen = _decode(decode_kernel.paged_decode_attention, q, kv, bounds)

    wanted = _decode(reference_paged_decode_attention, q.double(), kv.double(), bounds)
    assert_near(seen, wanted)
    assert_near(_decode(reference_paged_decode_attention, q, kv, bounds), wanted)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bounds", [(None, None), (33, 0.8)], ids=str)
def test_prefill_attention_agrees_with_float64(
    heads: Heads, dtype: torch.dtype, bounds: Bounds, device: str
) -> None:
    """As for decode, over a whole prompt, a later chunk and one token."""
    kv = a_paged_kv([17, 90, 40], heads, dtype=dtype, device=device).fp8()
    q = random_floats(17 + 33 + 1, heads.num_q, heads.size, dtype=dtype, device=device, seed=1)
    starts = torch.tensor([0, 17, 50, 51], dtype=torch.int32, device=device)

    seen = _prefill(prefill_kernel.paged_prefill_attention, q, kv, starts, bounds)

    reference = reference_paged_prefill_attention
    wanted = _prefill(reference, q.double(), kv.double(), starts, bounds)
    assert_near(seen, wanted)
    assert_near(_prefill(reference, q, kv, starts, bounds), wanted)


@pytest.mark.parametrize("factor", [1e-4, 1e3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_any_size_come_back(factor: float, dtype: torch.dtype, device: str) -> None:
    """An exponent must neither push a weight below its type, nor a value beyond it."""
    kv = a_paged_kv([150], Heads(2, 1, 64), dtype=dtype, device=device)
    kv.v_cache.mul_(factor)
    kv = kv.fp8()
    q = random_floats(1, 2, 64, dtype=dtype, device=device, seed=1)

    seen = _decode(decode_kernel.paged_decode_attention, q, kv)

    wanted = _decode(reference_paged_decode_attention, q.double(), kv.double())
    assert float((seen.double() - wanted).norm() / wanted.norm()) < 2e-2


@pytest.mark.parametrize("size", [64, 16, 128])
def test_the_compiled_ops_store_the_codes_of_what_they_would_have_stored(
    native: NativeOps, size: int
) -> None:
    """Bit for bit, as the kernel does."""
    qkv = random_floats(9, (4 + 2 * 2) * size, dtype=torch.float32, device="cpu")
    qkv *= torch.tensor(SIZES)[:, None].clamp(max=1e37) / 3
    qkv[8, -1] = torch.inf
    cos_sin = torch.randn(50, size, generator=torch.Generator().manual_seed(7))
    slots = torch.tensor([0, 40, 63, 16, 33, 31, 5, 1, 2])
    shape = (4, 16, 2)

    def stored(*, fp8: bool) -> tuple[Tensor, ...]:
        dtype = CODES if fp8 else torch.float32
        caches = [torch.zeros(*shape, size).to(dtype) for _ in range(2)]
        exponents = [torch.zeros(shape, dtype=EXPONENTS) for _ in range(2)]
        native.rope_and_store_kv(
            qkv=qkv.clone(),
            positions=torch.arange(9),
            slots=slots,
            cos_sin=cos_sin,
            norms=None,
            eps=1e-5,
            k_cache=caches[0],
            v_cache=caches[1],
            exponents=(exponents[0], exponents[1]) if fp8 else None,
        )
        return (*caches, *exponents)

    floats, seen = stored(fp8=False), stored(fp8=True)
    for which in range(2):
        codes, exponents = quantize_heads(floats[which].flatten(0, 1)[slots])
        assert (seen[2 + which].flatten(0, 1)[slots] == exponents).all()
        is_number = exponents != 255
        written = seen[which].flatten(0, 1)[slots].view(torch.uint8)
        assert (written[is_number] == codes.view(torch.uint8)[is_number]).all()
    assert (seen[3] == 255).sum() == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("heads", [Heads(9, 3, 64), Heads(4, 2, 128), Heads(6, 1, 16)], ids=str)
def test_the_compiled_decode_agrees_with_float64(
    native: NativeOps, heads: Heads, window: int | None, threads: int
) -> None:
    """Rows of every length, of which threads share a row by its heads or take it whole."""
    kv = a_paged_kv(LENGTHS, heads, dtype=torch.float32, device="cpu").fp8()
    q = random_floats(len(LENGTHS), heads.num_q, heads.size, dtype=torch.float32, device="cpu")
    out = torch.empty(len(LENGTHS), heads.num_q * heads.size)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        native.paged_decode_attention(
            qkv=q.flatten(1),
            num_q_heads=heads.num_q,
            k_cache=kv.k_cache,
            v_cache=kv.v_cache,
            exponents=kv.exponents,
            block_table=kv.block_table,
            context_lens=kv.context_lens,
            rows=len(LENGTHS),
            out=out,
            scale=0.2,
            window=window,
        )
    finally:
        torch.set_num_threads(before)

    wanted = reference_paged_decode_attention(
        q.double(), *kv.double().caches, kv.block_table, kv.context_lens, 0.2, window
    )
    assert_near(out, wanted.flatten(1))


def test_caches_of_another_type_are_refused(device: str, native: NativeOps) -> None:
    """Codes without exponents, exponents without codes, and exponents of another shape."""
    kv = a_paged_kv([5], Heads(1, 1, 64), dtype=torch.float32, device=device)
    coded = kv.fp8()
    q = random_floats(1, 1, 64, dtype=torch.float32, device=device)
    assert coded.exponents is not None
    few = coded.exponents[0], coded.exponents[1][:1]

    for wrong, rule in (
        (replace(coded, exponents=None), r"k_cache\[0\] must be .* float32"),
        (replace(kv, exponents=coded.exponents), r"k_cache\[0\] must be .* float8_e4m3fn"),
        (replace(coded, exponents=few), "v_exponents must be contiguous"),
    ):
        with pytest.raises(ValueError, match=rule):
            _decode(decode_kernel.paged_decode_attention, q, wrong)
    with pytest.raises(ValueError, match=r"k_cache must be .*float32"):
        native.paged_decode_attention(
            qkv=q.cpu().flatten(1),
            num_q_heads=1,
            k_cache=coded.k_cache.cpu(),
            v_cache=coded.v_cache.cpu(),
            block_table=kv.block_table.cpu(),
            context_lens=kv.context_lens.cpu(),
            rows=1,
            out=torch.empty(1, 64),
            scale=0.2,
            window=None,
        )
