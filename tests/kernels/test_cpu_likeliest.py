"""The likeliest token, compiled, beside torch's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline_kernels.cpu import NativeOps, native_ops

NOT_A_TOKEN = -1


@pytest.fixture(scope="module")
def ops() -> NativeOps:
    found = native_ops()
    if found is None:
        pytest.skip("no C compiler here")
    return found


@pytest.mark.parametrize("shape", [(1, 1), (3, 15), (2, 16), (5, 17), (16, 49_152)], ids=str)
@pytest.mark.parametrize("shift", [0.0, -100.0, 100.0])
def test_it_is_torchs(ops: NativeOps, shape: tuple[int, int], shift: float) -> None:
    """Where all are below zero, too; of equals the first."""
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + shift

    assert torch.equal(ops.likeliest(logits), logits.argmax(dim=1))
    assert torch.equal(ops.likeliest(logits.round()), logits.round().argmax(dim=1))


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, -3e38, 3e38]), min_size=1, max_size=40)
)
def test_zeros_and_extremes_have_the_order_of_numbers(ops: NativeOps, numbers: list[float]) -> None:
    """Two zeros are one: the first of them counts."""
    assert int(ops.likeliest(torch.tensor([numbers]))) == numbers.index(max(numbers))


@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 32])
def test_what_is_not_finite_is_no_token(ops: NativeOps, value: float, at: int) -> None:
    """Such a row's request ends, and no other."""
    logits = torch.zeros(3, 33)
    logits[1, at] = value

    assert ops.likeliest(logits).tolist() == [0, NOT_A_TOKEN, 0]
    assert ops.likeliest(torch.full((1, 20), -torch.inf)).tolist() == [NOT_A_TOKEN]
    logits[1, at] = -torch.inf
    assert ops.likeliest(logits).tolist() == [0, 1 if at == 0 else 0, 0]
