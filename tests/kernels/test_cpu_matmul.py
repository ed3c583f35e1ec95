"""The compiled product, beside torch's in float64."""

import pytest
import torch
from torch import Tensor

from paceline_kernels.activation import reference_gelu_tanh_mul, reference_silu_mul
from paceline_kernels.cpu import Gate, Matmul, native_ops
from paceline_testing.kernel_cases import assert_near, random_floats


@pytest.fixture(params=[1, 2], ids=lambda threads: f"{threads} threads")
def matmul(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Matmul:
    ops = native_ops()
    if ops is None:
        pytest.skip("no C compiler here")
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    return ops.matmul


def _floats(*sizes: int, seed: int = 0) -> Tensor:
    return random_floats(*sizes, dtype=torch.float32, device="cpu", seed=seed)


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 13, 14, 15, 29, 100])
@pytest.mark.parametrize("sizes", [(1, 1), (33, 17), (576, 64), (100, 7000)], ids=str)
def test_products_agree_with_float64(matmul: Matmul, rows: int, sizes: tuple[int, int]) -> None:
    """Every height of a tile, panels that are not full, and rows that need several blocks."""
    outputs, inputs = sizes
    x, weight, bias = _floats(rows, inputs), _floats(outputs, inputs, seed=1), _floats(outputs)
    wanted = x.double() @ weight.double().t()
    packed = matmul.pack(weight)

    assert_near(matmul(x, packed) / inputs**0.5, wanted / inputs**0.5)
    assert_near(matmul(x, packed, bias) / inputs**0.5, (wanted + bias.double()) / inputs**0.5)


def _bytes(outputs: int, inputs: int, to: torch.dtype) -> tuple[Tensor, Tensor]:
    """Every value that there is, and scales that differ."""
    codes = torch.arange(outputs * inputs).mul(37).remainder(256).to(torch.uint8)
    values = codes.reshape(outputs, inputs).view(to)
    if to != torch.int8:
        values = torch.where(values.float().isfinite(), values.float(), 0.0).to(to)
    return values, torch.logspace(-3, 3, outputs)


@pytest.mark.parametrize("to", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.parametrize("rows", [1, 5, 14, 29])
@pytest.mark.parametrize("sizes", [(1, 1), (33, 17), (100, 6999)], ids=str)
def test_a_byte_a_number_is_widened_without_loss(
    matmul: Matmul, rows: int, sizes: tuple[int, int], to: torch.dtype
) -> None:
    """Sums in float32 of exactly these numbers, where inputs make no whole groups of four."""
    outputs, inputs = sizes
    x, bias, (values, scales) = _floats(rows, inputs), _floats(outputs), _bytes(*sizes, to)
    weight = values.double() * scales.double()[:, None]
    size = inputs**0.5 * weight.abs().max()

    seen = matmul(x, matmul.pack(values, scales), bias)

    assert_near(seen / size, (x.double() @ weight.t() + bias.double()) / size)


def test_the_smallest_codes_of_fp8_are_no_zeros(matmul: Matmul) -> None:
    """Below 2^-6 a code has no exponent of its own, and its bits mean a float32 like that."""
    values = torch.arange(1, 8, dtype=torch.uint8).view(torch.float8_e4m3fn)[:, None]

    seen = matmul(torch.ones(1, 1), matmul.pack(values, torch.ones(7)))

    assert torch.equal(seen[0], torch.arange(1, 8) / 512)


@pytest.mark.parametrize("to", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_gated_products_of_bytes_agree_with_float64(matmul: Matmul, to: torch.dtype) -> None:
    """Each half of a panel has the scales of its own outputs."""
    x, (values, scales) = _floats(17, 41), _bytes(96, 41, to)
    scales = scales / 1e3
    wanted = reference_silu_mul(x.double() @ (values.double() * scales.double()[:, None]).t())

    seen = matmul.gated(x, matmul.pack(values, scales, is_gated=True), "silu")

    torch.testing.assert_close(
        seen.double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max())
    )


@pytest.mark.parametrize("gate", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "features"), [(1, 16), (5, 48), (31, 320)])
def test_gated_products_agree_with_float64(
    matmul: Matmul, gate: Gate, rows: int, features: int
) -> None:
    """The gate and what it lets through are halves of the weight, and meet in one panel."""
    x, weight = _floats(rows, 40), _floats(2 * features, 40, seed=1)
    reference = reference_silu_mul if gate == "silu" else reference_gelu_tanh_mul
    wanted = reference(x.double() @ weight.double().t())

    seen = matmul.gated(x, matmul.pack(weight, is_gated=True), gate)

    assert_near(seen / 10, wanted / 10)


def test_a_row_does_not_depend_on_the_rows_beside_it(matmul: Matmul) -> None:
    """Else the same request would get other tokens in another batch."""
    x, packed = _floats(50, 576), matmul.pack(_floats(64, 576, seed=1))

    together = matmul(x, packed)

    for row in (0, 13, 49):
        assert torch.equal(matmul(x[row : row + 1], packed)[0], together[row])


def test_what_is_not_a_number_stays_in_its_row(matmul: Matmul) -> None:
    """The sampler ends the request of that row, and no other."""
    x, packed = _floats(20, 64), matmul.pack(_floats(64, 64, seed=1))
    x[3, 5] = torch.nan

    product = matmul(x, packed)

    assert product[3].isnan().all()
    assert product[[row for row in range(20) if row != 3]].isfinite().all()


def test_a_wrong_tensor_is_refused(matmul: Matmul) -> None:
    """C would read past its end, or what is meant for another product."""
    plain, gated = matmul.pack(torch.ones(32, 4)), matmul.pack(torch.ones(32, 4), is_gated=True)

    with pytest.raises(ValueError, match=r"x must be contiguous \(2, 4\)"):
        matmul(torch.ones(2, 5), plain)
    with pytest.raises(ValueError, match=r"bias must be contiguous \(32,\)"):
        matmul(torch.ones(2, 4), plain, torch.ones(31))
    with pytest.raises(ValueError, match="gated outputs must be a multiple of 32, got 48"):
        matmul.pack(torch.ones(48, 4), is_gated=True)
    with pytest.raises(ValueError, match="scales go with int8"):
        matmul.pack(torch.ones(32, 4), torch.ones(32))
    with pytest.raises(ValueError, match="scales go with int8"):
        matmul.pack(torch.ones(32, 4, dtype=torch.int8))
    with pytest.raises(ValueError, match=r"scales must be contiguous \(32,\)"):
        matmul.pack(torch.ones(32, 4, dtype=torch.int8), torch.ones(31))
    with pytest.raises(ValueError, match="packed as gated"):
        matmul.gated(torch.ones(2, 4), plain, "silu")
    with pytest.raises(ValueError, match="a gated weight is for"):
        matmul(torch.ones(2, 4), gated)
