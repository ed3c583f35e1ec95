"""What is quantised before it is written: the norm and the gate, as products of FP8 take them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import paceline_kernels
from paceline_kernels.activation import kernel as gates
from paceline_kernels.activation import (
    reference_gelu_tanh_mul,
    reference_gelu_tanh_mul_fp8,
    reference_silu_mul,
    reference_silu_mul_fp8,
)
from paceline_kernels.fp8_rows import kernel as rows
from paceline_kernels.norm import kernel as norms
from paceline_kernels.norm import reference_add_rms_norm, reference_add_rms_norm_fp8
from paceline_kernels.tuned import NO_GPU, SHIPPED, Row, Table, blocks_of
from paceline_testing.kernel_cases import DTYPES, assert_codes_near, assert_near, random_floats

pytestmark = pytest.mark.fp8

EPS = 1e-5
# One column, less than a tile, one more than a tile.
SHAPES = [(1, 1), (3, 64), (2, 577)]
Gate = Callable[[Tensor], Tensor]
Fp8Gate = Callable[[Tensor], tuple[Tensor, Tensor]]
GATES = [
    pytest.param(gates.silu_mul_fp8, gates.silu_mul, reference_silu_mul, id="silu"),
    pytest.param(gates.gelu_tanh_mul_fp8, gates.gelu_tanh_mul, reference_gelu_tanh_mul, id="gelu"),
]


def far_apart(x: Tensor) -> Tensor:
    """Columns of all sizes: codes that are normal, small, and none."""
    return x * torch.logspace(-4, 0, x.shape[1], device=x.device, dtype=x.dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_in_fp8_agrees_with_float64(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """Quantising is the only loss, and the sum leaves whole."""
    x, residual = (random_floats(*shape, dtype=dtype, device=device, seed=n) for n in (0, 2))
    weight = far_apart(random_floats(1, shape[1], dtype=dtype, device=device, seed=1))[0]

    codes, scales, new_residual = norms.add_rms_norm_fp8(x, residual, weight, EPS)

    normed, wanted = reference_add_rms_norm(x.double(), residual.double(), weight.double(), EPS)
    assert_codes_near(codes, scales, normed, dtype)
    assert_near(new_residual, wanted)


@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=["weight", "gemma's weight"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_norm_in_fp8_is_that_of_two_launches(
    weight_dtype: torch.dtype | None, dtype: torch.dtype, device: str
) -> None:
    """Bit for bit: what is kept out of memory is rounded as if it had been there."""
    x, residual = (random_floats(5, 577, dtype=dtype, device=device, seed=n) for n in (0, 2))
    weight = far_apart(random_floats(1, 577, dtype=dtype, device=device, seed=1))[0]
    weight = weight.to(weight_dtype or dtype)

    codes, scales, new_residual = norms.add_rms_norm_fp8(x, residual, weight, EPS)

    normed, wanted_residual = norms.add_rms_norm(x, residual, weight, EPS)
    wanted_codes, wanted_scales = rows.quantize_rows(normed)
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(new_residual, wanted_residual)


@pytest.mark.parametrize(("fused", "_gate", "reference"), GATES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_in_fp8_agrees_with_float64(
    fused: Fp8Gate,
    _gate: Gate,
    reference: Gate,
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: str,
) -> None:
    """Quantising is the only loss."""
    x = random_floats(shape[0], 2 * shape[1], dtype=dtype, device=device)

    codes, scales = fused(x)

    assert codes.shape == shape
    assert_codes_near(codes, scales, reference(x.double()), dtype)


@pytest.mark.parametrize("columns", [128, 1024], ids=["in blocks", "in one"])
@pytest.mark.parametrize(("fused", "gate", "_reference"), GATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_in_fp8_is_that_of_two_launches(
    fused: Fp8Gate, gate: Gate, _reference: Gate, columns: int, dtype: torch.dtype, device: str
) -> None:
    """Bit for bit, also where a row does not fit and is gated twice; the loudest lies amidst it."""
    x = random_floats(8, 577, dtype=dtype, device=device)
    x = far_apart(x).roll(300, dims=1).reshape(4, 2 * 577)
    row = Row(
        kernel="gate_mul_fp8",
        shape={},
        blocks={"columns": columns, "num_warps": 4},
        because="a test",
    )

    with blocks_of.as_if(Table((row, *_others("gate_mul_fp8"))), NO_GPU):
        codes, scales = fused(x)

    wanted_codes, wanted_scales = rows.quantize_rows(gate(x))
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    assert torch.equal(scales, wanted_scales)


def _others(kernel: str) -> tuple[Row, ...]:
    return tuple(row for row in SHIPPED.rows if row.kernel != kernel)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")  # NumPy's, interpreted
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_takes_its_row_along(bad: float, device: str) -> None:
    """The row has no scale, so every output of it is none; its neighbour goes on."""
    x, weight = torch.ones(2, 80, device=device), torch.ones(80, device=device)
    x[0, 67] = bad

    fused = (norms.add_rms_norm_fp8, reference_add_rms_norm_fp8)
    scales = [op(x, x, weight, EPS)[1] for op in fused]
    scales += [op(x)[1] for op in (gates.silu_mul_fp8, reference_silu_mul_fp8)]
    scales += [op(x)[1] for op in (gates.gelu_tanh_mul_fp8, reference_gelu_tanh_mul_fp8)]

    assert [one.isnan().tolist() for one in scales] == [[True, False]] * 6


def test_rows_of_zeros_stay_zero(device: str) -> None:
    """As padding is."""
    x, weight = torch.zeros(2, 80, device=device), torch.ones(80, device=device)

    for codes, scales in (norms.add_rms_norm_fp8(x, x, weight, EPS)[:2], gates.silu_mul_fp8(x)):
        assert not codes.float().any()
        assert scales.isfinite().all()


def test_a_large_row_does_not_overflow_float16(device: str) -> None:
    """Squares and scales are float32."""
    x = torch.full((2, 576), 300.0, dtype=torch.float16, device=device)
    weight = torch.ones(576, dtype=torch.float16, device=device)

    codes, scales, _ = norms.add_rms_norm_fp8(x, x, weight, EPS)

    assert_near((codes.float() * scales[:, None]).half(), torch.ones(2, 576).double().to(device))


def test_ops_take_codes_where_there_is_no_gpu() -> None:
    """The same signature and the same three results, by the reference."""
    x, weight = torch.ones(2, 8), torch.ones(8)

    codes, scales, residual = paceline_kernels.add_rms_norm_fp8(x, x, weight, EPS)

    assert codes.dtype == torch.float8_e4m3fn
    assert scales.shape == (2,)
    assert torch.equal(residual, x + x)


def test_what_is_no_row_of_floats_is_refused() -> None:
    x, wide = torch.zeros(2, 4), torch.zeros(1, 16385)

    with pytest.raises(ValueError, match=r"residual must be contiguous \[2, 4\] float32"):
        norms.add_rms_norm_fp8(x, torch.zeros(2, 5), torch.zeros(4), EPS)
    with pytest.raises(ValueError, match=r"x must have an even number of columns, .* got 5"):
        gates.silu_mul_fp8(torch.zeros(2, 5))
    with pytest.raises(ValueError, match="hidden must be at most 16384, got 16385"):
        norms.add_rms_norm_fp8(wide, wide, wide[0], EPS)
