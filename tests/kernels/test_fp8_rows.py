import pytest
import torch

from paceline_kernels.fp8_rows import kernel, reference_quantize_rows
from paceline_testing.kernel_cases import DTYPES, random_floats

pytestmark = pytest.mark.fp8

# Less than a block, blocks and a rest, and one block to the last column.
SHAPES = [(1, 1), (3, 64), (5, 577), (2, 4096), (2, 8195)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_stores_the_codes_of_the_reference(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """The same bits: rows of all sizes, and values that lie far apart within one."""
    x = random_floats(*shape, dtype=torch.float32, device=device)
    x *= torch.logspace(-3, 3, shape[0], device=device)[:, None]
    x = (x * torch.logspace(-4, 0, shape[1], device=device)).to(dtype)

    codes, scales = kernel.quantize_rows(x)

    wanted_codes, wanted_scales = reference_quantize_rows(x)
    assert torch.equal(codes.view(torch.uint8), wanted_codes.view(torch.uint8))
    torch.testing.assert_close(scales, wanted_scales, rtol=1e-6, atol=0)


def test_no_value_moves_by_more_than_half_of_its_last_bit() -> None:
    """It has 4 bits; below 2^-14 of the row's largest value, by as much as there."""
    x = random_floats(20, 300, dtype=torch.float32, device="cpu")
    x *= torch.logspace(-5, 5, 20)[:, None]

    codes, scales = reference_quantize_rows(x)

    largest = x.abs().amax(dim=1, keepdim=True)
    bound = torch.maximum(x.abs() / 16, largest * 2.0**-18.8)
    assert ((codes.float() * scales[:, None] - x).abs() <= 1.0001 * bound).all()
    assert (codes.float().abs().amax(dim=1) == 448).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_holds_no_number_has_no_scale(bad: float, device: str) -> None:
    """So every output of it is none, and the sampler ends its request; its neighbour goes on."""
    x = torch.ones(2, 40, device=device)
    x[0, 7] = bad

    for _codes, scales in (kernel.quantize_rows(x), reference_quantize_rows(x)):
        assert scales.isnan().tolist() == [True, False]


def test_a_row_of_zeros_stays_zero(device: str) -> None:
    """As padding is."""
    x = torch.zeros(2, 40, device=device)

    for codes, scales in (kernel.quantize_rows(x), reference_quantize_rows(x)):
        assert not codes.float().any()
        assert scales.isfinite().all()


def test_what_is_no_row_of_floats_is_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be contiguous \[rows, columns\] float16 or"):
        kernel.quantize_rows(torch.zeros(2, 4, dtype=torch.int32))
