"""Penalties and masks of rows, in the interpreter or on a GPU."""

import pytest
import torch
from torch import Tensor

from paceline_kernels.sampling import kernel, reference_forbid, reference_penalise
from paceline_testing.interpreter import patch_once
from paceline_testing.kernel_cases import assert_near, random_floats

VOCAB = 700


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small launches."""
    patch_once(monkeypatch)


def ints(values: list[int], device: str, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def test_penalties_agree_with_float64(device: str) -> None:
    """Rows of no token, of one, and of more than a block; the one on its way new, known or none."""
    scores = random_floats(4, VOCAB, dtype=torch.float32, device=device)
    lists = [[], [5], list(range(40, 640)), [699, 0, 7]]
    starts = ints([0, 0, 1, 601, 604], device)
    ids = ints([token for each in lists for token in each], device)
    counts = torch.arange(604, device=device).int() % 5
    arriving = ints([3, -1, 41, 9], device, torch.int64)
    rates = [
        torch.tensor(values, device=device)
        for values in ([1.2, 0.7, 1.0, 2.0], [0.5, -0.3, 1.0, 0.0], [0.0, 1.0, -0.5, 0.3])
    ]

    seen = kernel.penalise(scores.clone(), ids, counts, starts, arriving, *rates)

    wide = [rate.double() for rate in rates]
    assert_near(seen, reference_penalise(scores.double(), ids, counts, starts, arriving, *wide))
    assert torch.equal(seen[2, :40], scores[2, :40])
    assert seen[0, 3] != scores[0, 3]


def test_a_penalty_is_the_formula(device: str) -> None:
    """The ground truth, by hand: a token met twice, one of the prompt, and one on its way."""
    scores = torch.tensor([[2.0, -2.0, 1.0, 4.0]], dtype=torch.float64, device=device)

    seen = reference_penalise(
        scores,
        ints([0, 1], device),
        ints([2, 0], device),
        ints([0, 2], device),
        ints([3], device, torch.int64),
        *(torch.tensor([rate], dtype=torch.float64, device=device) for rate in (2.0, 0.25, 0.5)),
    )

    assert seen.tolist() == [[2 / 2 - 2 * 0.25 - 0.5, -2 * 2, 1.0, 4 / 2 - 0.25 - 0.5]]


@pytest.mark.parametrize("vocab", [31, 1056, 1100])
def test_what_a_mask_rules_out_is_minus_infinity(vocab: int, device: str) -> None:
    """Rows without a mask stay as they are; bits beyond the vocabulary mean nothing."""
    scores = random_floats(3, vocab, dtype=torch.float32, device=device)
    generator = torch.Generator().manual_seed(1)
    bounds = (-(1 << 31), 1 << 31)
    words = torch.randint(*bounds, (2, -(-vocab // 32) + 1), generator=generator).int().to(device)
    rows = ints([2, 0], device, torch.int64)

    seen = kernel.forbid(scores.clone(), rows, words)

    assert torch.equal(seen, reference_forbid(scores.clone(), rows, words))
    assert torch.equal(seen[1], scores[1])
    is_allowed = [bool(int(words[0, token // 32]) >> (token % 32) & 1) for token in range(vocab)]
    assert (seen[2] > -torch.inf).tolist() == is_allowed


def test_a_mask_that_is_too_short_is_refused(device: str) -> None:
    """Its kernel would read beyond it."""
    scores = torch.zeros(1, 65, device=device)

    with pytest.raises(ValueError, match="words must hold 65 bits, got 2 words of 32"):
        kernel.forbid(scores, ints([0], device, torch.int64), ints([0, 0], device)[None])
