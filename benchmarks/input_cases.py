"""Timing cases of the kernels that make a step's inputs; see `kernel_cases`."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernel_cases import BLOCK_SIZE, Case, Layer, Load
from paceline_engine.core.step_tensors import SamplingTensors
from paceline_kernels.input_prep import (
    DRAW_COLUMNS,
    reference_keep_tokens,
    reference_lay_out_draws,
    reference_lay_out_step,
    reference_write_rows,
)
from paceline_kernels.input_prep import kernel as input_prep


def input_cases_of(layer: Layer, load: Load) -> Iterator[Case]:
    """Yield every kernel, for as many decodes as the load has tokens."""
    yield step_case(layer, load.num_tokens)
    yield writes_case(layer, load.num_tokens)
    yield draws_case(layer, load.num_tokens)
    yield keep_case(layer, load.num_tokens)


def step_case(layer: Layer, num_tokens: int) -> Case:
    """Decodes of 1,000 tokens: a few numbers each, and their blocks read and written."""
    context = 1000
    num_blocks, device = -(-context // BLOCK_SIZE), layer.device
    table = torch.randint(1 << 20, (num_tokens, 2 * num_blocks), dtype=torch.int32, device=device)
    rows = torch.randperm(num_tokens, device=device)
    starts = torch.full_like(rows, context - 1)
    bounds = torch.arange(num_tokens + 1, device=device)
    given_ids = torch.where(rows % 2 == 0, -1, rows)

    def lay_out(op: Callable[..., None]) -> tuple[Tensor, ...]:
        tokens, positions, slots = (torch.empty_like(rows) for _ in range(3))
        blocks = torch.empty(num_tokens, num_blocks, dtype=torch.int32, device=device)
        lens = torch.empty(num_tokens, dtype=torch.int32, device=device)
        op(
            *(table, rows, rows, starts, bounds, given_ids),
            block_size=BLOCK_SIZE,
            max_count=1,
            token_ids=tokens,
            positions=positions,
            slots=slots,
            block_table=blocks,
            context_lens=lens,
        )
        return tokens, positions, slots, blocks, lens

    return Case(
        layer.model.name,
        "lay_out_step",
        f"{num_tokens} decodes",
        lambda: lay_out(input_prep.lay_out_step),
        lambda: lay_out(reference_lay_out_step),
        num_bytes=num_tokens * (2 * 4 * num_blocks + 7 * 8 + 4),
    )


def writes_case(layer: Layer, num_tokens: int) -> Case:
    """One block more for each row, all at once: the most that decodes ever write."""
    table = torch.zeros(num_tokens, 64, dtype=torch.int32, device=layer.device)
    rows = torch.randperm(num_tokens, device=layer.device)
    bounds = torch.arange(num_tokens + 1, device=layer.device)

    def write(op: Callable[..., None]) -> Tensor:
        op(table, rows, rows % 64, bounds, rows)
        return table

    return Case(
        layer.model.name,
        "write_rows",
        f"{num_tokens} rows",
        lambda: write(input_prep.write_rows),
        lambda: write(reference_write_rows),
        num_bytes=num_tokens * (4 * 8 + 4),
    )


def draws_case(layer: Layer, num_tokens: int) -> Case:
    """Each row's sampling parameters, behind the blocks of 1,000 tokens."""
    column, device = -(-1000 // BLOCK_SIZE), layer.device
    # Of the bits up to here every float32 is a number.
    size = (num_tokens, column + DRAW_COLUMNS)
    table = torch.randint(1 << 30, size, dtype=torch.int32, device=device)
    rows = torch.randperm(num_tokens, device=device)

    def lay_out(op: Callable[..., None]) -> tuple[Tensor, ...]:
        parameters = SamplingTensors.empty(num_tokens, table.device)
        op(table, rows, rows, column=column, **parameters._asdict())
        return parameters

    return Case(
        layer.model.name,
        "lay_out_draws",
        f"{num_tokens} rows",
        lambda: lay_out(input_prep.lay_out_draws),
        lambda: lay_out(reference_lay_out_draws),
        # The rows lie apart: a sector of 32 bytes of each.
        num_bytes=num_tokens * (32 + 4 * 8 + 4 * 4),
    )


def keep_case(layer: Layer, num_tokens: int) -> Case:
    """One token for each row."""
    latest = torch.zeros(num_tokens, dtype=torch.int64, device=layer.device)
    rows = torch.randperm(num_tokens, device=layer.device)

    def keep(op: Callable[..., None]) -> Tensor:
        op(latest, rows, rows)
        return latest

    return Case(
        layer.model.name,
        "keep_tokens",
        f"{num_tokens} rows",
        lambda: keep(input_prep.keep_tokens),
        lambda: keep(reference_keep_tokens),
        num_bytes=3 * 8 * num_tokens,
    )
