"""Products of few rows against float64, and beside the ops that they stand for."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from paceline_kernels import add_rms_norm, rms_norm, silu_mul
from paceline_kernels.row_products import (
    ARRIVALS,
    Gate,
    RowNorm,
    kernel,
    reference_add_row_product,
    reference_row_product,
)
from paceline_kernels.tuned import SHIPPED, Gpu, blocks_of
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats

EPS = 1e-5
SIZES = [(1, 64, 64), (17, 577, 130), (70, 700, 100), (128, 40, 3)]
"""Rows, inputs and outputs: around the classes of rows, whole tiles and ragged ones."""


@pytest.fixture(params=[1, 40], ids=["whole", "in parts"], autouse=True)
def multiprocessors(request: pytest.FixtureRequest, device: str) -> Iterator[int]:
    """With one, no product is cut; with 40, every one that is long enough."""
    count: int = request.param
    gpu = blocks_of._gpu_of(torch.device(device))
    with blocks_of.as_if(SHIPPED, Gpu(gpu.name, gpu.capability, count)):
        yield count


def norm_of(x: Tensor, *, weight_dtype: torch.dtype) -> RowNorm:
    """Norm rows whose squares come in three parts."""
    weight = 1 + 0.1 * random_floats(x.shape[1], dtype=torch.float32, device=str(x.device), seed=5)
    parts = [part.float().square().sum(dim=1) for part in x.tensor_split(3, dim=1)]
    return RowNorm(weight.to(weight_dtype), torch.stack(parts), EPS)


def wide(norm: RowNorm) -> RowNorm:
    return RowNorm(norm.weight.double(), norm.squares.double(), norm.eps)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [None, "silu", "gelu_tanh"])
@pytest.mark.parametrize("norm_dtype", [None, "own", torch.float32], ids=str)
def test_a_product_agrees_with_float64(
    size: tuple[int, int, int],
    dtype: torch.dtype,
    gate: Gate | None,
    norm_dtype: torch.dtype | str | None,
    device: str,
) -> None:
    """With each norm and gate, and a bias."""
    rows, num_in, num_out = size
    num_out *= 2 if gate else 1
    x = random_floats(rows, num_in, dtype=dtype, device=device)
    weight = random_floats(num_out, num_in, dtype=dtype, device=device, seed=1) / num_in**0.5
    bias = random_floats(num_out, dtype=dtype, device=device, seed=2)
    norm = None
    if norm_dtype is not None:
        norm = norm_of(x, weight_dtype=dtype if isinstance(norm_dtype, str) else norm_dtype)

    seen = kernel.row_product(x, weight, bias, norm, gate)

    told = None if norm is None else wide(norm)
    assert_near(seen, reference_row_product(x.double(), weight.double(), bias.double(), told, gate))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_and_its_squares_agree_with_float64(
    size: tuple[int, int, int], dtype: torch.dtype, device: str
) -> None:
    """The squares are of what is stored, for that is what the norm reads."""
    rows, num_in, num_out = size
    x = random_floats(rows, num_in, dtype=dtype, device=device)
    weight = random_floats(num_out, num_in, dtype=dtype, device=device, seed=1) / num_in**0.5
    residual = random_floats(rows, num_out, dtype=dtype, device=device, seed=2)

    seen, squares = kernel.add_row_product(x, weight, residual)

    wanted, _ = reference_add_row_product(x.double(), weight.double(), residual.double())
    assert_near(seen, wanted)
    torch.testing.assert_close(squares.sum(dim=0), seen.float().square().sum(dim=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_mlp_is_that_of_separate_ops(dtype: torch.dtype, device: str) -> None:
    """Sum, norm, product, gate, product, sum: rounded at the same places."""
    rows, hidden, features = 5, 320, 200
    x, residual = (
        random_floats(rows, hidden, dtype=dtype, device=device, seed=n) for n in range(2)
    )
    eye = torch.eye(hidden, dtype=dtype, device=device)
    norm = random_floats(hidden, dtype=dtype, device=device, seed=3)
    gate_up = random_floats(2 * features, hidden, dtype=dtype, device=device, seed=4) / 16

    added, squares = kernel.add_row_product(x, eye, residual)
    seen = kernel.row_product(added, gate_up, None, RowNorm(norm, squares, EPS), "silu")

    normed, wanted_sum = add_rms_norm(x, residual, norm, EPS)
    assert torch.equal(added, wanted_sum)
    assert_near(seen, silu_mul(torch.nn.functional.linear(normed, gate_up)).double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_norm_rounds_as_its_kernel_does(dtype: torch.dtype, device: str) -> None:
    """A product with the identity returns what the norm alone does, bit for bit but rarely."""
    x = random_floats(7, 576, dtype=dtype, device=device)
    norm = norm_of(x, weight_dtype=dtype)
    eye = torch.eye(576, dtype=dtype, device=device)

    seen = kernel.row_product(x, eye, None, norm)

    # The order of the sum of squares may turn the last bit of a root.
    is_same = seen == rms_norm(x, norm.weight, EPS)
    assert is_same.float().mean() > (0.5 if dtype == torch.float32 else 0.99)


def test_counters_are_as_before(device: str, multiprocessors: int) -> None:
    """The next launch counts from 0; two launches in a row give the same bits."""
    arrived = torch.zeros(ARRIVALS, dtype=torch.int32, device=device)
    x = random_floats(9, 1100, dtype=torch.float16, device=device)
    weight = random_floats(140, 1100, dtype=torch.float16, device=device, seed=1)

    first = kernel.row_product(x, weight, arrived=arrived)
    again = kernel.row_product(x, weight, arrived=arrived)

    assert multiprocessors
    assert not arrived.any()
    assert torch.equal(first, again)


@pytest.mark.parametrize(
    ("tiles", "inputs", "most", "parts"),
    [
        (32, 64, 8, 4),
        (48, 64, 8, 2),
        (224, 64, 8, 1),
        (7, 14, 8, 3),
        (7, 76, 99, 8),
        (132, 99, 8, 1),
        (16, 32, 4, 4),
        (1, 2, 0, 1),
    ],
)
def test_parts_fill_the_device_once(tiles: int, inputs: int, most: int, parts: int) -> None:
    """Not more programs than multiprocessors, and four tiles of inputs for each at least."""
    seen = kernel.num_parts(tiles=tiles, multiprocessors=132, input_tiles=inputs, most=most)

    assert seen == parts


def test_too_many_rows_are_refused() -> None:
    """A program holds all rows."""
    with pytest.raises(ValueError, match="rows must be 1 to 128, got 129"):
        kernel.row_product(torch.zeros(129, 8), torch.zeros(8, 8))


def test_an_odd_gate_is_refused() -> None:
    """Gate and up have as many outputs each."""
    with pytest.raises(ValueError, match="even number of rows, got 7"):
        kernel.row_product(torch.zeros(1, 8), torch.zeros(7, 8), gate="silu")
