"""A step's inputs made from its rows, in plain torch: the ground truth."""

import torch
from torch import Tensor

DRAW_COLUMNS = 6
"""Numbers of a row that its tokens are drawn by: the seed's low half and its high one, temperature,
top-k, top-p and min-p; all but the halves and top-k are the bits of a float32."""


def write_rows(
    table: Tensor,  # [rows, columns] int32, written to
    rows: Tensor,  # [runs] int64: no two runs overlap
    columns: Tensor,  # [runs] int64: where each begins in its row
    bounds: Tensor,  # [runs + 1] int64: run w is numbers[bounds[w] : bounds[w + 1]]
    numbers: Tensor,  # [numbers] int64, of 32 bits each
) -> None:
    """Put runs of numbers into their rows."""
    runs = zip(rows.tolist(), columns.tolist(), bounds.tolist(), bounds[1:].tolist(), strict=False)
    for row, column, first, end in runs:
        table[row, column : column + end - first] = numbers[first:end].to(torch.int32)


def lay_out_step(
    table: Tensor,  # [rows, columns] int32: of each row its blocks, and maybe more
    latest: Tensor,  # [rows] int64: the token that each row sampled last
    rows: Tensor,  # [sequences] int64: whose row each sequence is; -1 is padding
    starts: Tensor,  # [sequences] int64: place of its first token
    bounds: Tensor,  # [sequences + 1] int64: its tokens are [bounds[s], bounds[s + 1])
    given_ids: Tensor,  # [tokens] int64; below 0: the row's latest
    *,
    block_size: int,
    max_count: int,  # the most tokens of one sequence
    token_ids: Tensor,  # [tokens] int64, written to, as all that follow
    positions: Tensor,  # [tokens] int64
    slots: Tensor,  # [tokens] int64: block * block_size + offset; -1 of padding
    block_table: Tensor,  # [sequences, blocks] int32, padded with block 0
    context_lens: Tensor,  # [sequences] int32: up to the step's end; 0 of padding
) -> None:
    """Gather each sequence's tokens, places, slots and blocks.

    A latest token below 0 is none: any will do in its place, and 0 is taken.
    """
    block_table.zero_()
    for sequence, row in enumerate(rows.tolist()):
        first, end = bounds[sequence : sequence + 2].tolist()
        if end - first > max_count:
            raise ValueError(f"max_count must be at least {end - first}, got {max_count}")
        tokens = given_ids[first:end]
        if row < 0:
            token_ids[first:end], positions[first:end] = tokens.clamp(min=0), 0
            slots[first:end], context_lens[sequence] = -1, 0
            continue
        start = int(starts[sequence])
        length = start + end - first
        places = torch.arange(start, length, device=table.device)
        token_ids[first:end] = torch.where(tokens < 0, latest[row].clamp(min=0), tokens)
        positions[first:end] = places
        blocks = table[row, places // block_size].long()
        slots[first:end] = blocks * block_size + places % block_size
        context_lens[sequence] = length
        num_blocks = -(-length // block_size)
        block_table[sequence, :num_blocks] = table[row, :num_blocks]


def lay_out_draws(
    table: Tensor,  # [rows, columns] int32
    rows: Tensor,  # [tokens] int64: whose row each token is that samples; -1 is padding
    places: Tensor,  # [tokens] int64: its place in its sequence
    *,
    column: int,  # where the DRAW_COLUMNS of a row begin
    seeds: Tensor,  # [tokens] int64, written to, as all that follow
    positions: Tensor,  # [tokens] int64: place of the token that is drawn, one further
    temperatures: Tensor,  # [tokens] float32
    top_k: Tensor,  # [tokens] int32
    top_p: Tensor,  # [tokens] float32
    min_p: Tensor,  # [tokens] float32
) -> None:
    """Gather what `sample_tokens` draws by. Padding is greedy: it cuts nothing, and draws nothing.

    Looks at no number on the host.
    """
    is_real = rows >= 0
    draws = table[:, column : column + DRAW_COLUMNS][rows.clamp(min=0)]
    draws = draws.masked_fill(~is_real.unsqueeze(1), 0)
    floats = draws.view(torch.float32)
    seeds.copy_((draws[:, 1].long() << 32) | (draws[:, 0].long() & 0xFFFFFFFF))
    positions.copy_(torch.where(is_real, places + 1, 0))
    temperatures.copy_(floats[:, 2])
    top_k.copy_(draws[:, 3])
    top_p.copy_(floats[:, 4].masked_fill(~is_real, 1.0))
    min_p.copy_(floats[:, 5])


def keep_tokens(
    latest: Tensor,  # [rows] int64, written to
    rows: Tensor,  # [tokens] int64: each row once; -1 keeps nothing
    tokens: Tensor,  # [tokens] int64
) -> None:
    """Leave each token at its row."""
    is_real = rows >= 0
    latest[rows[is_real]] = tokens[is_real]
