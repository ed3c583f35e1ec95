"""Products of bfloat16 and of bytes, beside float64; by registers, and by tiles in plain C."""

import functools
import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_kernels.activation import reference_gelu_tanh_mul, reference_silu_mul
from paceline_kernels.cpu import Gate, Matmul, NativeOps, native_ops
from paceline_kernels.cpu.cpu_features import this_cpu
from paceline_kernels.cpu.loading import load_library, places
from paceline_testing.kernel_cases import random_floats

ROWS = [1, 2, 13, 14, 15, 16, 17, 29, 31, 32, 33, 40, 100, 400]
SIZES = [(33, 64), (576, 192), (100, 30), (31, 1536)]


@functools.cache
def _emulated() -> Matmul:
    if "avx512f" not in this_cpu().features:
        pytest.skip("tiles, emulated too, need AVX-512")
    library = load_library(replace(places(os.environ), compiler="cc -DEMULATE_TILES")).library
    assert library is not None
    matmul = NativeOps(library).matmul
    assert matmul.has_tile_products
    return matmul


@pytest.fixture(params=["registers", "tiles"])
def matmul(request: pytest.FixtureRequest) -> Matmul:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    return _emulated() if request.param == "tiles" else ops.matmul


def _bfloat16(*sizes: int, seed: int = 0) -> Tensor:
    return random_floats(*sizes, dtype=torch.bfloat16, device="cpu", seed=seed)


def _assert_within_ulps(seen: Tensor, wanted: Tensor, size: Tensor, ulps: float = 1.0) -> None:
    """Compare with float64: rounded once to bfloat16, from sums in float32 of such a size."""
    assert seen.dtype == torch.bfloat16
    allowed = ulps * 2.0**-8 * wanted.abs() + 2.0**-20 * size
    assert ((seen.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_of_bfloat16_are_float32_sums_rounded_once(
    matmul: Matmul, rows: int, sizes: tuple[int, int]
) -> None:
    """Every height of a tile, tiles that overlap, and panels that are not full."""
    outputs, inputs = sizes
    x, weight, bias = (
        _bfloat16(rows, inputs),
        _bfloat16(outputs, inputs, seed=1),
        torch.rand(outputs),
    )
    wanted = x.double() @ weight.double().t()
    size = x.double().abs() @ weight.double().abs().t()
    packed = matmul.pack(weight)

    _assert_within_ulps(matmul(x, packed), wanted, size)
    _assert_within_ulps(matmul(x, packed, bias), wanted + bias.double(), size)


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("rows", [1, 16, 31, 50])
def test_gated_products_of_bfloat16_agree_with_float64(
    matmul: Matmul, gate: Gate, rows: int
) -> None:
    """The sums are gated before they are rounded."""
    x, weight = _bfloat16(rows, 64), _bfloat16(96, 64, seed=1)
    reference = reference_silu_mul if gate == "silu" else reference_gelu_tanh_mul
    halves = x.double() @ weight.double().t()
    wanted = reference(halves)

    seen = matmul.gated(x, matmul.pack(weight, is_gated=True), gate)

    _assert_within_ulps(seen, wanted, halves.abs().amax() ** 2 * torch.ones(()))


BYTE_SIZES = [(33, 64), (576, 192), (100, 28), (40, 100)]


def _int8(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Make values with scales [outputs]."""
    values = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    return values, torch.rand(outputs) + 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 14, 16, 29, 33, 100])
@pytest.mark.parametrize("sizes", BYTE_SIZES, ids=str)
def test_rows_that_are_bytes_already_lose_nothing(
    matmul: Matmul, rows: int, sizes: tuple[int, int], dtype: torch.dtype
) -> None:
    """Whole numbers are summed without loss, then scaled by row and block and by output."""
    outputs, inputs = sizes
    values, scales = _int8(outputs, inputs)
    bias = torch.rand(outputs)
    x = torch.randint(-127, 128, (rows, inputs))
    x[:, ::16] = 127  # every block's largest
    x = (x * 2.0 ** torch.randint(-9, 9, (rows, 1))).to(dtype)
    weight = values.double() * scales.double()[:, None]
    wanted = x.double() @ weight.t() + bias.double()
    size = x.double().abs() @ weight.abs().t()

    seen = matmul(x, matmul.pack(values, scales), bias)

    assert seen.dtype == dtype
    once = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-23
    assert ((seen.double() - wanted).abs() <= once * wanted.abs() + 2.0**-20 * size).all()


@pytest.mark.parametrize("sizes", BYTE_SIZES, ids=str)
def test_other_rows_lose_half_a_step_of_their_block(matmul: Matmul, sizes: tuple[int, int]) -> None:
    """A step is the 127th part of the largest of 64 inputs."""
    if not matmul.has_byte_products:
        pytest.skip("this CPU has no products of bytes")
    outputs, inputs = sizes
    values, scales = _int8(outputs, inputs)
    x = random_floats(20, inputs, dtype=torch.float32, device="cpu")
    weight = values.double() * scales.double()[:, None]
    steps = [
        block.abs().amax(dim=1, keepdim=True).expand_as(block) / 127 for block in x.split(64, 1)
    ]
    allowed = torch.cat(steps, dim=1).double() @ weight.abs().t() / 2

    errors = matmul(x, matmul.pack(values, scales)).double() - x.double() @ weight.t()

    assert (errors.abs() <= allowed * 1.001).all()
    assert (errors.abs() > 0).any()


def test_a_row_of_bytes_that_is_not_finite_stays_so(matmul: Matmul) -> None:
    """The sampler ends the request of that row, and no other; a row of zeros is nothing."""
    x = torch.ones(20, 64)
    x[3, 5], x[4, 6], x[5] = torch.nan, torch.inf, 0.0
    packed = matmul.pack(torch.ones(32, 64, dtype=torch.int8), torch.ones(32))

    product = matmul(x, packed)

    assert product[3].isnan().all()
    infinite = product[4].isnan() if matmul.has_byte_products else product[4].isinf()
    assert infinite.all()
    assert not product[5].any()
    assert torch.equal(product[6:], torch.full((14, 32), 64.0))


@settings(deadline=None, max_examples=30)
@given(rows=st.integers(1, 80), one=st.integers(0, 79), seed=st.integers(0, 9))
@pytest.mark.parametrize("kind", ["bfloat16", "bytes"])
def test_a_row_does_not_depend_on_the_rows_beside_it(
    kind: str, rows: int, one: int, seed: int
) -> None:
    """Else the same request would get other tokens in another batch."""
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    x, one = _bfloat16(rows, 64, seed=seed), one % rows
    values = torch.arange(48 * 64).remainder(255).sub(127).to(torch.int8).reshape(48, 64)
    builds = [ops.matmul]
    if "avx512f" in this_cpu().features:
        builds.append(_emulated())
    for matmul in builds:
        packed = matmul.pack(_bfloat16(48, 64, seed=1))
        if kind == "bytes":
            packed = matmul.pack(values, torch.ones(48))

        assert torch.equal(matmul(x[one : one + 1], packed)[0], matmul(x, packed)[one])


def test_bfloat16_of_odd_inputs_is_refused(matmul: Matmul) -> None:
    """Its groups are pairs."""
    with pytest.raises(ValueError, match="inputs must be even for bfloat16, got 17"):
        matmul.pack(torch.ones(32, 17, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"x must be contiguous \(1, 16\) torch.bfloat16"):
        matmul(torch.ones(1, 16), matmul.pack(torch.ones(32, 16, dtype=torch.bfloat16)))
