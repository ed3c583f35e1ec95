"""A step's prompts as lists of pages: what FlashInfer's planner takes in the place of a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from paceline_engine.attention.prefill.attention import Chunk


@dataclass(frozen=True, slots=True)
class PageBounds:
    """Where each of P chunks begins among the step's tokens and among its pages, on the host."""

    tokens: tuple[int, ...]  # [P + 1], from 0
    pages: tuple[int, ...]  # [P + 1], from 0
    last_page_lens: tuple[int, ...]
    """[P]: tokens in the last page of each context, from 1 to the size of a page."""


def page_bounds(chunks: Sequence[Chunk], page_size: int) -> PageBounds:
    """Count pages; every chunk has a token at least."""
    return PageBounds(
        tuple(accumulate((chunk.tokens for chunk in chunks), initial=0)),
        tuple(accumulate((-(-chunk.context // page_size) for chunk in chunks), initial=0)),
        tuple((chunk.context - 1) % page_size + 1 for chunk in chunks),
    )


def page_ids(
    block_table: Tensor,  # [P, blocks] int32
    context_lens: Tensor,  # [P] int32
    page_size: int,
    num_pages: int,
) -> Tensor:  # [num_pages] int32
    """Take from each row the blocks that its context needs, one row after the other.

    `num_pages` is their number as the host knows it: nothing waits for the device.
    """
    counts = (context_lens.long() + page_size - 1) // page_size
    rows = torch.arange(len(counts), device=counts.device)
    row = torch.repeat_interleave(rows, counts, output_size=num_pages)
    starts = counts.cumsum(0) - counts
    column = torch.arange(num_pages, device=counts.device) - starts[row]
    return block_table[row, column]
