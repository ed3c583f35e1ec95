"""One step as the host knows it: whose rows it computes, from where, and what changed in them."""

import itertools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from paceline_engine.core.request import Request

Int32s: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

AT_ITS_ROW = -1
"""In place of a token: the one that was sampled last for its row, wherever that lies."""


@dataclass(frozen=True, slots=True)
class RowWrites:
    """What rows have got since the step before: W runs of numbers, each within one row.

    Blocks; and behind the columns of those, once for each owner, what its tokens are drawn by.
    """

    rows: Int64s  # [W]
    columns: Int64s  # [W]: where each run begins in its row
    bounds: Int64s  # [W + 1]: run w is numbers[bounds[w] : bounds[w + 1]]
    numbers: Int64s  # [B]: of 32 bits

    def __len__(self) -> int:
        """Count the runs."""
        return len(self.rows)

    @property
    def arrays(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """All there is, in the order above."""
        return self.rows, self.columns, self.bounds, self.numbers

    def parts(self, room: int) -> list["RowWrites"]:
        """Cut into parts of up to `room` numbers each; one part as a rule, and at least."""
        if sum(map(len, self.arrays)) <= room:
            return [self]
        most = room - 4  # beside a run's row, column and two bounds
        parts = []
        for run, (first, end) in enumerate(itertools.pairwise(self.bounds.tolist())):
            for begin in range(first, end, most):
                numbers = self.numbers[begin : min(begin + most, end)]
                column = self.columns[run : run + 1] + (begin - first)
                bounds = np.array([0, len(numbers)], dtype=np.int64)
                parts.append(RowWrites(self.rows[run : run + 1], column, bounds, numbers))
        return parts


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens of S sequences, decodes first; see docs/kv-layout.md."""

    num_decodes: int
    rows: Int64s  # [S]: whose row each sequence is
    starts: Int64s  # [S]: place of its first token
    bounds: Int64s  # [S + 1]: its tokens are [bounds[s], bounds[s + 1])
    token_ids: Int64s  # [T]; a decode's may be AT_ITS_ROW
    writes: RowWrites
    sample_rows: Int64s  # [R]: tokens whose logits are wanted
    sampled: tuple[Request, ...]  # [R]: whose they are
    kept_at: Int64s | None  # [R]: rows where the sampled tokens are left; None: nowhere
    rows_suffice: bool = False
    """What lies at the rows is all that sampling takes: no request need be asked."""
    ahead: tuple[int, ...] = ()  # [R]: guessed tokens before each, all 0 where empty
    keeps_every_state: bool = False
    """More of a prompt is asked for than the token that follows it, or adapters take part."""

    @property
    def ends(self) -> Int64s:  # [S]
        """Tokens of each sequence up to the end of the step: what its last one attends to."""
        ends: Int64s = self.starts + self.bounds[1:] - self.bounds[:-1]
        return ends

    @property
    def chunks(self) -> tuple[tuple[int, int], ...]:  # [S - num_decodes]
        """Of each sequence behind the decodes, its tokens and what its last one attends to."""
        counts = np.diff(self.bounds[self.num_decodes :])
        return tuple(zip(counts.tolist(), self.ends[self.num_decodes :].tolist(), strict=True))

    @property
    def sampled_at(self) -> tuple[Int64s, Int64s]:  # each [R]
        """Of each token that samples, whose row it is and its place in its sequence."""
        if len(self.sample_rows) == len(self.token_ids) == len(self.rows):
            return self.rows, self.starts
        sequences = np.searchsorted(self.bounds, self.sample_rows, side="right") - 1
        places = self.starts[sequences] + self.sample_rows - self.bounds[sequences]
        return self.rows[sequences], places

    @property
    def kept_rows(self) -> Int64s | None:
        """Tokens whose final state is read; None for all."""
        is_all = self.keeps_every_state or len(self.sample_rows) == len(self.token_ids)
        return None if is_all else self.sample_rows
