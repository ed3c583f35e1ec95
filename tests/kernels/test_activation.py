import math

import pytest
import torch

from paceline_kernels.activation import kernel, reference_gelu_tanh_mul, reference_silu_mul
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats


@pytest.mark.parametrize("shape", [(1, 2), (3, 1536), (2, 2 * 1025), (4, 2 * 1536)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_mul_agrees_with_float64(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """1025 features leave a second program with a single column."""
    x = random_floats(*shape, dtype=dtype, device=device)

    assert_near(kernel.silu_mul(x), reference_silu_mul(x.double()))


@pytest.mark.parametrize("shape", [(1, 2), (2, 2 * 1025), (4, 2 * 1536)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_tanh_mul_agrees_with_float64(
    shape: tuple[int, int], dtype: torch.dtype, device: str
) -> None:
    """The exact GELU differs by 5e-4 at most: float32 tells them apart."""
    x = 2 * random_floats(*shape, dtype=dtype, device=device)

    assert_near(kernel.gelu_tanh_mul(x), reference_gelu_tanh_mul(x.double()))


def test_the_gate_comes_first() -> None:
    """The ground truth itself, by hand: silu(1) * 2, and not silu(2) * 1."""
    seen = reference_silu_mul(torch.tensor([[1.0, 2.0]]))

    torch.testing.assert_close(seen, torch.tensor([[2 / (1 + math.exp(-1))]]))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # NumPy's, in the interpreter
def test_a_large_negative_gate_gives_zero(device: str) -> None:
    """exp(-gate) overflows there; the product must be 0, and not 0 * inf."""
    x = torch.tensor([[-1e4, 3.0]], device=device)

    assert kernel.silu_mul(x).item() == 0
