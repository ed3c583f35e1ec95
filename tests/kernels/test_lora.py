from typing import TypeAlias

import pytest
import torch

from paceline_kernels.lora import kernel, reference_add_adapters
from paceline_testing.kernel_cases import DTYPES, assert_near, random_floats

NOBODY = -1
Case: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""y, x, down, up, and each token's adapter."""


def _case(
    adapters: list[int],
    num_in: int,
    ends: tuple[int, ...],
    rank: int,
    *,
    dtype: torch.dtype,
    device: str,
    num_adapters: int = 3,
) -> Case:
    """Make y, x, down, up and each token's adapter; sums are near 1."""
    tokens, num_out = len(adapters), ends[-1]
    y = random_floats(tokens, num_out, dtype=dtype, device=device)
    x = random_floats(tokens, num_in, dtype=dtype, device=device, seed=1)
    columns = len(ends) * rank
    down = random_floats(num_adapters, columns, num_in, dtype=dtype, device=device, seed=2)
    up = random_floats(num_adapters, num_out, rank, dtype=dtype, device=device, seed=3)
    of_tokens = torch.tensor(adapters, dtype=torch.int64, device=device)
    return y, x, down / num_in**0.5, up / rank**0.5, of_tokens


def _wanted(case: Case, ends: tuple[int, ...]) -> torch.Tensor:
    y, x, down, up, adapters = case
    return reference_add_adapters(
        y.double(), x.double(), down.double(), up.double(), adapters, ends
    )


@pytest.mark.parametrize("tokens", [1, 16, 17, 130])
@pytest.mark.parametrize(
    ("num_in", "ends", "rank"),
    [(64, (64,), 16), (100, (70, 90, 131), 8), (3, (1, 2), 1), (520, (40, 129), 70)],
    ids=str,
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_adapters_agree_with_float64(
    tokens: int,
    num_in: int,
    ends: tuple[int, ...],
    rank: int,
    *,
    dtype: torch.dtype,
    device: str,
) -> None:
    """Several adapters and none within a tile, parts that no tile divides, ranks of two tiles."""
    drawn = torch.randint(-1, 3, (tokens,), generator=torch.Generator().manual_seed(tokens))
    drawn[0] = 2
    case = _case(drawn.tolist(), num_in, ends, rank, dtype=dtype, device=device)
    wanted = _wanted(case, ends)

    seen = kernel.add_adapters(*case, ends)

    assert_near(seen, wanted)


def test_tokens_without_an_adapter_stay_as_they_are(device: str) -> None:
    """Also beside others, and where what they are made of is no number."""
    ends = (32, 48)
    owners = [NOBODY, 1, *[NOBODY] * 31]
    case = _case(owners, 40, ends, 4, dtype=torch.float32, device=device)
    case[1][0] = torch.nan
    before = case[0].clone()

    seen = kernel.add_adapters(*case, ends)

    others = [row for row in range(33) if row != 1]
    assert torch.equal(seen[others], before[others])
    assert not torch.equal(seen[1], before[1])


def test_a_token_of_nan_spoils_no_other(device: str) -> None:
    """Nor does one whose adapter is another one."""
    ends = (32,)
    case = _case([0, 0, 1], 40, ends, 4, dtype=torch.float32, device=device)
    case[1][0] = torch.nan
    wanted = _wanted(case, ends)

    seen = kernel.add_adapters(*case, ends)

    assert seen[0].isnan().all()
    assert_near(seen[1:], wanted[1:])


@pytest.mark.parametrize("ends", [(), (8, 4, 16), (0, 16), (4, 8), (2, 4, 8, 16)], ids=str)
def test_parts_that_are_none_are_refused(ends: tuple[int, ...]) -> None:
    """They are where each token's outputs begin and end: a wrong one is wild memory."""
    parts = len(ends)
    y, x = torch.zeros(2, 16), torch.zeros(2, 3)
    adapters = torch.zeros(2, dtype=torch.int64)

    with pytest.raises(ValueError, match="ends must be 1 to 3, up to 16"):
        kernel.add_adapters(
            y, x, torch.zeros(1, parts * 2, 3), torch.zeros(1, 16, 2), adapters, ends
        )


def test_reference_adds_each_tokens_own() -> None:
    """The ground truth itself, by hand: two parts, two adapters, and a token without one."""
    y = torch.ones(3, 2)
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]])
    down = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [1.0, 1.0]]])
    up = torch.tensor([[[1.0], [1.0]], [[2.0], [-1.0]]])

    seen = reference_add_adapters(y, x, down, up, torch.tensor([0, -1, 1]), (1, 2))

    torch.testing.assert_close(seen, torch.tensor([[2.0, 3.0], [1.0, 1.0], [13.0, -2.0]]))
