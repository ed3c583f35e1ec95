import struct
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_kernels.input_prep import (
    DRAW_COLUMNS,
    kernel,
    reference_keep_tokens,
    reference_lay_out_draws,
    reference_lay_out_step,
    reference_write_rows,
)

NUM_ROWS, COLUMNS, BLOCK_SIZE = 7, 300, 4
POISON = -77


@dataclass(frozen=True, slots=True)
class Sequence:
    """One sequence of a step."""

    row: int
    start: int
    count: int
    at_row: bool = False
    """Its token is the row's latest."""


DECODES = [Sequence(3, 0, 1), Sequence(0, 1199, 1, at_row=True), Sequence(6, 515, 1, at_row=True)]
MIXED = [*DECODES, Sequence(2, 0, 600), Sequence(5, 7, 3)]
PADDED = [Sequence(4, 8, 1, at_row=True), Sequence(-1, 0, 1), Sequence(1, 3, 1), Sequence(-1, 0, 1)]
BROKEN = [Sequence(5, 4, 1, at_row=True)]  # whose latest token is none


def a_table(device: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 1 << 20, (NUM_ROWS, COLUMNS), generator=generator).int().to(device)


def latest_of_rows(device: str) -> Tensor:
    return torch.tensor([100, 101, 102, 103, 104, -1, 106], device=device)


def outputs(sequences: list[Sequence], width: int, device: str) -> dict[str, Any]:
    num_tokens = sum(each.count for each in sequences)

    def poisoned(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.full(sizes, POISON, dtype=dtype, device=device)

    return {
        "token_ids": poisoned(num_tokens),
        "positions": poisoned(num_tokens),
        "slots": poisoned(num_tokens),
        "block_table": poisoned(len(sequences), width, dtype=torch.int32),
        "context_lens": poisoned(len(sequences), dtype=torch.int32),
    }


@pytest.mark.parametrize(
    "sequences",
    [DECODES, MIXED, PADDED, BROKEN],
    ids=["decodes", "with prompts", "padded", "broken"],
)
@pytest.mark.parametrize("spare", [0, 1, 40])
def test_a_step_is_laid_out_as_the_reference_does(
    sequences: list[Sequence], spare: int, device: str
) -> None:
    """Over several tiles of tokens and of blocks, into memory that held something else."""
    ends = [each.start + each.count for each in sequences]
    width = min(COLUMNS, -(-max(ends) // BLOCK_SIZE) + spare)
    counts = [each.count for each in sequences]
    given = torch.arange(200, 200 + sum(counts))
    bounds = torch.tensor([0, *counts]).cumsum(0)
    for sequence, first in zip(sequences, bounds.tolist(), strict=False):
        if sequence.at_row:
            given[first] = -1
    rows = torch.tensor([each.row for each in sequences], device=device)
    starts = torch.tensor([each.start for each in sequences], device=device)
    table, latest = a_table(device), latest_of_rows(device)
    bounds, given = bounds.to(device), given.to(device)
    sizes: dict[str, Any] = {"block_size": BLOCK_SIZE, "max_count": max(counts)}
    seen, wanted = (outputs(sequences, width, device) for _ in range(2))

    kernel.lay_out_step(table, latest, rows, starts, bounds, given, **sizes, **seen)
    reference_lay_out_step(table, latest, rows, starts, bounds, given, **sizes, **wanted)

    for name, tensor in seen.items():
        assert torch.equal(tensor, wanted[name]), name
    assert POISON not in wanted["token_ids"]


def test_the_reference_lays_out_a_step_by_hand(device: str) -> None:
    """The ground truth itself: a decode at its row's token, a padding row, a cut prompt."""
    table = torch.tensor([[9, 8, 7], [5, 4, 6]], dtype=torch.int32, device=device)
    sequences = [Sequence(1, 5, 1), Sequence(-1, 0, 1), Sequence(0, 3, 2)]
    seen = outputs(sequences, 3, device)

    reference_lay_out_step(
        table,
        torch.tensor([50, 51], device=device),
        torch.tensor([1, -1, 0], device=device),
        torch.tensor([5, 0, 3], device=device),
        torch.tensor([0, 1, 2, 4], device=device),
        torch.tensor([-1, 0, 30, 31], device=device),
        block_size=4,
        max_count=2,
        **seen,
    )

    assert seen["token_ids"].tolist() == [51, 0, 30, 31]
    assert seen["positions"].tolist() == [5, 0, 3, 4]
    assert seen["slots"].tolist() == [4 * 4 + 1, -1, 9 * 4 + 3, 8 * 4]
    assert seen["block_table"].tolist() == [[5, 4, 0], [0, 0, 0], [9, 8, 0]]
    assert seen["context_lens"].tolist() == [6, 0, 5]


@pytest.mark.parametrize("lengths", [[1, 1, 1], [300], [2, 270, 1, 29]])
def test_runs_of_blocks_are_written_where_they_belong(lengths: list[int], device: str) -> None:
    """And nowhere else: other rows, and what lies before and behind a run, stay."""
    rows = torch.tensor([4, 1, 6, 0][: len(lengths)], device=device)
    columns = torch.tensor([(COLUMNS - length) // 2 for length in lengths], device=device)
    bounds = torch.tensor([0, *lengths], device=device).cumsum(0)
    block_ids = torch.arange(10, 10 + sum(lengths), device=device)
    seen, wanted = a_table(device), a_table(device)

    kernel.write_rows(seen, rows, columns, bounds, block_ids)
    reference_write_rows(wanted, rows, columns, bounds, block_ids)

    assert torch.equal(seen, wanted)
    assert not torch.equal(seen, a_table(device))


def test_tokens_are_kept_at_their_rows(device: str) -> None:
    """And nothing of padding, over more than one tile."""
    rows = torch.arange(600, device=device).flip(0)
    rows[::3] = -1
    tokens = torch.arange(1000, 1600, device=device)
    seen, wanted = (torch.full((600,), POISON, device=device) for _ in range(2))

    kernel.keep_tokens(seen, rows, tokens)
    reference_keep_tokens(wanted, rows, tokens)

    assert torch.equal(seen, wanted)
    assert seen.eq(POISON).sum() == 200


def draws_of(count: int, device: str) -> dict[str, Tensor]:
    """Memory that held something else."""
    dtypes = {
        "seeds": torch.int64,
        "positions": torch.int64,
        "temperatures": torch.float32,
        "top_k": torch.int32,
        "top_p": torch.float32,
        "min_p": torch.float32,
    }
    return {
        name: torch.full((count,), POISON, dtype=dtype, device=device)
        for name, dtype in dtypes.items()
    }


@pytest.mark.parametrize("count", [1, 7, 600])
@pytest.mark.parametrize("column", [0, 5])
def test_draws_are_gathered_as_the_reference_does(count: int, column: int, device: str) -> None:
    """Over more than one tile, of rows in any order, some twice, some nobody's."""
    generator = torch.Generator().manual_seed(count)
    bits = torch.randint(
        -(1 << 31), 1 << 31, (NUM_ROWS, column + DRAW_COLUMNS + 2), generator=generator
    )
    bits[:, column + 2 :] = bits[:, column + 2 :] & 0x3FFFFFFF  # of floats that are numbers
    table = bits.int().to(device)
    rows = torch.randint(-1, NUM_ROWS, (count,), generator=generator).to(device)
    places = torch.randint(0, 1 << 40, (count,), generator=generator).to(device)
    seen, wanted = draws_of(count, device), draws_of(count, device)

    kernel.lay_out_draws(table, rows, places, column=column, **seen)
    reference_lay_out_draws(table, rows, places, column=column, **wanted)

    for name, tensor in seen.items():
        assert torch.equal(tensor, wanted[name]), name


@pytest.mark.parametrize("op", [kernel.lay_out_draws, reference_lay_out_draws])
def test_draws_are_gathered_by_hand(op: Any, device: str) -> None:
    """A row as it was written, and padding: greedy, cut by nothing, whatever lies at a row."""
    seeds = [-5, (1 << 63) - 1, -(1 << 63), 1 << 31]
    written = [
        [3, *struct.unpack("<6i", struct.pack("<qfiff", seed, 0.7, 40, 0.9, 0.05))]
        for seed in seeds
    ]
    table = torch.tensor(written, dtype=torch.int32, device=device)
    rows = torch.tensor([2, -1, 0, 1, 3, 2], device=device)
    places = torch.tensor([8, 5, 0, 1 << 33, 2, 9], device=device)
    seen = draws_of(6, device)

    op(table, rows, places, column=1, **seen)

    assert seen["seeds"].tolist() == [seeds[2], 0, *seeds[:2], seeds[3], seeds[2]]
    assert seen["positions"].tolist() == [9, 0, 1, (1 << 33) + 1, 3, 10]
    assert seen["top_k"].tolist() == [40, 0, 40, 40, 40, 40]
    for name, value, of_padding in (
        ("temperatures", 0.7, 0),
        ("top_p", 0.9, 1),
        ("min_p", 0.05, 0),
    ):
        given = torch.full((6,), value)
        given[1] = of_padding
        assert torch.equal(seen[name].cpu(), given), name


def test_a_row_too_narrow_for_draws_is_refused(device: str) -> None:
    """What lies behind it is another's."""
    longs = torch.zeros(2, dtype=torch.int64, device=device)

    with pytest.raises(ValueError, match=f"column must be 0 to {COLUMNS - 6}, got {COLUMNS - 5}"):
        kernel.lay_out_draws(
            a_table(device), longs, longs, column=COLUMNS - 5, **draws_of(2, device)
        )


def test_a_tensor_that_does_not_fit_is_refused(device: str) -> None:
    """A kernel that is handed a wrong one reads wild memory."""
    table = a_table(device)
    longs = torch.zeros(2, dtype=torch.int64, device=device)

    with pytest.raises(ValueError, match="bounds must be contiguous"):
        kernel.write_rows(table, longs, longs, longs, longs)
