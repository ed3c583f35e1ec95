import pytest
import torch

from paceline_kernels.fp8 import CODES
from paceline_kernels.quantized import kernel, reference_quantized_linear
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats


def _weight(
    num_out: int, num_in: int, device: str, of: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    if of == CODES:
        weight = (100 * torch.randn((num_out, num_in), generator=generator)).clamp(-448, 448)
        weight = weight.to(CODES)
        weight[0, 0] = 448.0
    else:
        weight = torch.randint(-127, 128, (num_out, num_in), generator=generator, dtype=of)
    # Sums near 1, so that an absolute tolerance means as much as a relative one.
    scales = (0.5 + torch.rand(num_out, generator=generator)) / (64 * num_in**0.5)
    return weight.to(device), scales.to(device)


@pytest.mark.parametrize("rows", [1, 17, 40])
@pytest.mark.parametrize("shape", [(64, 128), (70, 100), (1, 3), (129, 257)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "of", [torch.int8, pytest.param(CODES, marks=pytest.mark.fp8)], ids=["int8", "fp8"]
)
def test_quantized_linear_agrees_with_float64(
    rows: int,
    shape: tuple[int, int],
    *,
    has_bias: bool,
    dtype: torch.dtype,
    of: torch.dtype,
    device: str,
) -> None:
    """Sizes that no tile divides, and the largest among the weights."""
    num_out, num_in = shape
    x = random_floats(rows, num_in, dtype=dtype, device=device)
    weight, scales = _weight(num_out, num_in, device, of)
    bias = random_floats(num_out, dtype=dtype, device=device, seed=1) if has_bias else None

    seen = kernel.quantized_linear(x, weight, scales, bias)

    wanted_bias = None if bias is None else bias.double()
    assert_near(seen, reference_quantized_linear(x.double(), weight, scales.double(), wanted_bias))


@pytest.mark.parametrize(("rows", "most"), [(1, 16), (16, 16), (17, 64), (65, 128), (8192, 128)])
def test_all_batches_share_a_few_classes(rows: int, most: int) -> None:
    assert kernel.class_of(rows) == most


def test_a_weight_of_another_type_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"weight must be contiguous \[out, 4\] int8 or float8_e4m3fn on cpu"
    ):
        kernel.quantized_linear(torch.zeros(2, 4), torch.zeros(3, 4), torch.zeros(3))


def test_reference_scales_each_output() -> None:
    """The ground truth itself, by hand."""
    x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3, 4], [5, -6]], dtype=torch.int8)

    seen = reference_quantized_linear(x, weight, torch.tensor([0.5, 2.0]), torch.tensor([1.0, 0.0]))

    torch.testing.assert_close(seen, torch.tensor([[6.5, -14.0]]))
