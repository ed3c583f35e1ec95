"""The rows' tables on a CPU, in numpy. Implements `RowTables`."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.step_tensors import (
    Int32s,
    Int64s,
    RowWrites,
    SamplingTensors,
    StepInputs,
    StepTensors,
)


class HostTables:
    """Blocks and newest token of every row."""

    def __init__(self, num_rows: int, num_columns: int, block_size: int) -> None:
        self._block_size = block_size
        self._blocks = np.zeros((num_rows, num_columns), dtype=np.int32)
        self._latest = np.zeros(num_rows, dtype=np.int64)

    def lay_out(self, inputs: StepInputs) -> StepTensors:
        """See `RowTables`."""
        self._write(inputs.writes)
        ends, adapter_slots = inputs.ends, inputs.adapter_slots
        block_table = self._block_table(inputs.rows, ends)
        sequences, positions = _places(inputs)
        slots = block_table[sequences, positions // self._block_size].astype(np.int64)
        slots = slots * self._block_size + positions % self._block_size
        return StepTensors(
            num_decodes=inputs.num_decodes,
            token_ids=torch.from_numpy(self._token_ids(inputs)),
            positions=torch.from_numpy(positions),
            slots=torch.from_numpy(slots),
            block_table=torch.from_numpy(block_table),
            bounds=torch.from_numpy(inputs.bounds.astype(np.int32)),
            context_lens=torch.from_numpy(ends.astype(np.int32)),
            chunks=inputs.chunks,
            adapter_slots=None if adapter_slots is None else torch.from_numpy(adapter_slots),
        )

    def with_tokens(self, inputs: StepInputs) -> StepInputs:
        """See `RowTables`."""
        return replace(inputs, token_ids=self._token_ids(inputs))

    def parameters(self, inputs: StepInputs) -> SamplingTensors | None:
        """See `RowTables`: a CPU's sampler asks the requests."""
        del inputs
        return None

    def keep(self, inputs: StepInputs, tokens: Tensor) -> None:
        """See `RowTables`."""
        if inputs.kept_at is not None:
            self._latest[inputs.kept_at] = tokens.numpy()

    def _write(self, writes: RowWrites) -> None:
        runs = zip(writes.rows, writes.columns, writes.bounds, writes.bounds[1:], strict=False)
        for row, column, first, end in runs:
            self._blocks[row, column : column + end - first] = writes.numbers[first:end]

    def _block_table(self, rows: Int64s, ends: Int64s) -> Int32s:  # [S, P]
        num_blocks = -(-ends // self._block_size)
        columns = np.arange(num_blocks.max())
        held = self._blocks[rows, : len(columns)]
        held[columns >= num_blocks[:, None]] = (
            0  # an earlier owner's blocks, or later ones of its own
        )
        return held

    def _token_ids(self, inputs: StepInputs) -> Int64s:  # [T]
        token_ids = inputs.token_ids.copy()
        decodes = token_ids[: inputs.num_decodes]
        at_rows = decodes < 0
        # The step before may have sampled no token here; then it fails, and any token will do.
        decodes[at_rows] = self._latest[inputs.rows[: inputs.num_decodes][at_rows]].clip(min=0)
        return token_ids


def _places(inputs: StepInputs) -> tuple[Int64s, Int64s]:  # each [T]
    """Return each token's sequence, and its place in that."""
    num_sequences = len(inputs.rows)
    sequences = np.arange(num_sequences)
    if inputs.num_decodes == num_sequences:
        return sequences, inputs.starts
    sequences = np.repeat(sequences, np.diff(inputs.bounds))
    places = np.arange(len(inputs.token_ids)) - inputs.bounds[sequences]
    return sequences, places + inputs.starts[sequences]
