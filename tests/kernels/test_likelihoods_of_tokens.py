"""Log-probabilities, ranks and the likeliest tokens, in the interpreter or on a GPU."""

import pytest
import torch

from paceline_kernels.sampling import kernel, reference_token_likelihoods
from paceline_testing.interpreter import patch_once
from paceline_testing.kernel_cases import DTYPES, random_floats


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search has many small steps."""
    patch_once(monkeypatch)


@pytest.mark.parametrize(("vocab", "num_top"), [(3, 3), (129, 0), (700, 4), (4500, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_agree_with_float64(
    vocab: int, num_top: int, dtype: torch.dtype, device: str
) -> None:
    """The likeliest token, the unlikeliest, and one between; more likeliest than groups."""
    logits = 3 * random_floats(3, vocab, dtype=dtype, device=device)
    best, worst = logits[0].argmax(), logits[1].argmin()
    tokens = torch.stack((best, worst, torch.tensor(2, device=device)))

    seen = kernel.token_likelihoods(logits, tokens, num_top).double()

    wanted = reference_token_likelihoods(logits.double(), tokens, num_top)
    told = 2 + num_top
    torch.testing.assert_close(seen[:, :told], wanted[:, :told], rtol=1e-5, atol=1e-5)
    # Ids of equal logits are in the order of their places; torch has them in any.
    ids = seen[:, told:].long()
    torch.testing.assert_close(logits.gather(1, ids), logits.gather(1, wanted[:, told:].long()))
    assert all(len({*row}) == num_top for row in ids.tolist())


def test_equal_logits_are_told_in_order(device: str) -> None:
    """Each once, the first first, across groups."""
    logits = torch.zeros(1, 300, dtype=torch.float16, device=device)
    logits[0, [290, 7, 130]] = 1.0

    seen = kernel.token_likelihoods(logits, torch.tensor([130], device=device), 4)

    assert seen[0, 1] == 1  # nothing is above it
    assert seen[0, 6:].tolist() == [7, 130, 290, 0]


def test_a_row_without_a_token_is_told_of_all_the_same(device: str) -> None:
    """Its request ends; nothing is read beside the row."""
    logits = torch.zeros(2, 40, device=device)
    logits[1] = torch.nan

    seen = kernel.token_likelihoods(logits, torch.tensor([-1, -1], device=device), 0)

    assert seen[0].tolist() == pytest.approx([-(torch.tensor(40.0).log().item()), 1])


def test_more_than_the_vocabulary_is_refused(device: str) -> None:
    """There are no such tokens to tell of."""
    with pytest.raises(ValueError, match="num_top must be 0 to 9, got 10"):
        kernel.token_likelihoods(
            torch.zeros(1, 9, device=device), torch.zeros(1, dtype=torch.int64, device=device), 10
        )
