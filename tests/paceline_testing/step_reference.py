"""A step's arrays made from its requests, all anew: slow, obvious, and what rows must give too."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.step_tensors import Int32s, Int64s

Choose = Callable[[list[int]], int]


@dataclass(frozen=True, slots=True)
class StepReference:
    """The arrays of one step; see docs/kv-layout.md."""

    token_ids: Int64s  # [T]
    positions: Int64s  # [T]
    slots: Int64s  # [T]
    block_table: Int32s  # [S, P]
    bounds: Int32s  # [S + 1]
    context_lens: Int32s  # [S]
    sample_rows: Int64s  # [R]
    sampled: tuple[str, ...]  # [R]
    ahead: tuple[int, ...]  # [R]
    draws_at: Int64s  # [R]: places in their sequences of the tokens that are drawn
    next_ids: Int64s  # [R]: what the step samples


def step_reference(batch: Batch, block_size: int, choose: Choose) -> StepReference:
    """Lay every chunk out; a token that is not known yet is what the model would `choose`."""
    token_ids, positions, slots, bounds = [], [], [], [0]
    sample_rows, sampled, ahead, draws_at, next_ids = [], [], [], [], []
    for chunk in batch.chunks:
        end = chunk.start + chunk.count
        ids = _all_ids(chunk, choose)
        for position in range(chunk.start, end):
            token_ids.append(ids[position])
            positions.append(position)
            block = chunk.request.block_ids[position // block_size]
            slots.append(block * block_size + position % block_size)
        bounds.append(len(token_ids))
        for draft_tokens in range(len(chunk.draft) + 1) if chunk.samples else ():
            place = end - len(chunk.draft) + draft_tokens
            sample_rows.append(bounds[-1] - 1 - len(chunk.draft) + draft_tokens)
            sampled.append(chunk.request.id)
            ahead.append(draft_tokens)
            draws_at.append(place)
            next_ids.append(choose(ids[:place]))
    ends = [chunk.start + chunk.count for chunk in batch.chunks]
    widths = [-(-end // block_size) for end in ends]
    block_table = np.zeros((len(ends), max(widths)), dtype=np.int32)
    for row, width, chunk in zip(block_table, widths, batch.chunks, strict=True):
        row[:width] = chunk.request.block_ids[:width]
    return StepReference(
        np.array(token_ids, dtype=np.int64),
        np.array(positions, dtype=np.int64),
        np.array(slots, dtype=np.int64),
        block_table,
        np.array(bounds, dtype=np.int32),
        np.array(ends, dtype=np.int32),
        np.array(sample_rows, dtype=np.int64),
        tuple(sampled),
        tuple(ahead) if batch.num_drafted else (),
        np.array(draws_at, dtype=np.int64),
        np.array(next_ids, dtype=np.int64),
    )


def _all_ids(chunk: ScheduledChunk, choose: Choose) -> list[int]:
    ids = [*chunk.request.token_ids]
    if chunk.draft:
        return [*ids, *chunk.draft]
    while len(ids) < chunk.start + chunk.count:
        ids.append(choose(ids))
    return ids
