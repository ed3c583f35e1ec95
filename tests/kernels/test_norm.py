import pytest
import torch

from paceline_kernels.norm import kernel, reference_add_rms_norm, reference_rms_norm
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats

EPS = 1e-5
SHAPES = [(1, 1), (3, 64), (2, 577), (5, 576), (1, 4097)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_agrees_with_float64(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """Sizes around a power of two leave the tile's last columns masked, or nearly all of them."""
    x = random_floats(*shape, dtype=dtype, device=device)
    weight = random_floats(shape[1], dtype=dtype, device=device, seed=1)

    seen = kernel.rms_norm(x, weight, EPS)

    assert_near(seen, reference_rms_norm(x.double(), weight.double(), EPS))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_agrees_with_float64(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """Both results leave the kernel: the norm, and the sum that the next layer adds to."""
    x = random_floats(*shape, dtype=dtype, device=device)
    residual = random_floats(*shape, dtype=dtype, device=device, seed=2)
    weight = random_floats(shape[1], dtype=dtype, device=device, seed=1)

    normed, new_residual = kernel.add_rms_norm(x, residual, weight, EPS)

    wanted_normed, wanted_residual = reference_add_rms_norm(
        x.double(), residual.double(), weight.double(), EPS
    )
    assert_near(normed, wanted_normed)
    assert_near(new_residual, wanted_residual)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_in_float32_is_not_rounded_before_the_product(
    dtype: torch.dtype, device: str
) -> None:
    """Gemma's norms: one rounding, of the product, half a unit in the last place at most."""
    x = random_floats(5, 576, dtype=dtype, device=device)
    weight = 1 + 0.01 * random_floats(576, dtype=torch.float32, device=device, seed=1)

    seen = kernel.rms_norm(x, weight, EPS)

    wanted = reference_rms_norm(x.double(), weight.double(), EPS)
    unit = torch.finfo(dtype).eps
    assert seen.dtype == dtype
    assert ((seen.double() - wanted).abs() <= (0.5 * unit + 1e-6) * wanted.abs() + 1e-7).all()


def test_norm_of_large_rows_does_not_overflow_float16(device: str) -> None:
    """The squares are summed in float32: 300 * 300 is already past float16's largest number."""
    x = torch.full((2, 576), 300.0, dtype=torch.float16, device=device)
    weight = torch.ones(576, dtype=torch.float16, device=device)

    seen = kernel.rms_norm(x, weight, EPS)

    assert_near(seen, torch.ones(2, 576, dtype=torch.float64, device=device))


def test_reference_divides_by_the_root_mean_square() -> None:
    """The ground truth itself, by hand: the mean square of (3, 4) is 12.5."""
    normed = reference_rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)

    torch.testing.assert_close(normed, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)
