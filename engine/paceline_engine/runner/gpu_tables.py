"""The rows' tables on a GPU: they stay there, and a step sends what changed.

Implements `RowTables`, and beside it the steps of decodes alone in tensors that stay where they
are, which a CUDA graph reads and writes.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline_engine.core.step_tensors import (
    Int64s,
    RowWrites,
    SamplingTensors,
    StepInputs,
    StepTensors,
)
from paceline_engine.runner.staging import StepStaging
from paceline_kernels import keep_tokens, lay_out_draws, lay_out_step, write_rows
from paceline_kernels.input_prep import DRAW_COLUMNS

_WRITES_ROOM = 65_536
"""Numbers of writes in one copy: 512 KiB. What is more goes ahead in copies of its own."""

_PADDING = -1
"""In place of a row: a padding row, which belongs to nobody."""

_NO_ADAPTER = -1
"""In place of a slot: the token has no adapter."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A step's numbers on the device, all int64; they last until the next step's are copied."""

    rows: Tensor  # [S]
    starts: Tensor  # [S]
    bounds: Tensor  # [S + 1]
    token_ids: Tensor  # [T]
    sampled_rows: Tensor  # [R]: the row of each token that samples
    sampled_at: Tensor  # [R]: its place in its sequence
    adapter_slots: Tensor | None = None  # [T]: None where no adapter takes part


class DeviceTables:
    """Blocks, sampling parameters and newest token of every row, on a device."""

    def __init__(
        self,
        num_rows: int,
        num_columns: int,
        block_size: int,
        num_tokens: int,
        device: torch.device,
    ) -> None:
        """`num_tokens`: the most in one step."""
        self._block_size = block_size
        self.num_rows = num_rows
        self.num_columns = num_columns
        # Each row holds its blocks, and behind them what its owner's tokens are drawn by.
        width = num_columns + DRAW_COLUMNS
        self._table = torch.zeros((num_rows, width), dtype=torch.int32, device=device)
        self._latest = torch.zeros(num_rows, dtype=torch.int64, device=device)
        # Rows, starts, bounds, tokens, rows and places of those that sample, and slots of adapters:
        # none of these arrays is longer than the step's tokens.
        self._staging = StepStaging(7 * num_tokens + 3 + _WRITES_ROOM, device)
        none = torch.empty(0, dtype=torch.int64, device=device)
        self._sampled_rows, self._sampled_at = none, none
        self._static = _StaticDecodes(num_rows, num_columns, device)

    @property
    def device(self) -> torch.device:
        """Where the tables lie."""
        return self._latest.device

    def lay_out(self, inputs: StepInputs) -> StepTensors:
        """See `RowTables`."""
        staged = self.stage(inputs)
        step = self._empty_step(inputs, staged)
        is_decode = inputs.num_decodes == len(inputs.rows)
        lay_out_step(
            self._table,
            self._latest,
            staged.rows,
            staged.starts,
            staged.bounds,
            staged.token_ids,
            block_size=self._block_size,
            max_count=1 if is_decode else int((inputs.ends - inputs.starts).max()),
            token_ids=step.token_ids,
            positions=step.positions,
            slots=step.slots,
            block_table=step.block_table,
            context_lens=step.context_lens,
        )
        return step

    def stage(self, inputs: StepInputs) -> Staged:
        """Copy a step's numbers to the device, and write what changed in the rows."""
        step = [inputs.rows, inputs.starts, inputs.bounds, inputs.token_ids, *inputs.sampled_at]
        if inputs.adapter_slots is not None:
            step.append(inputs.adapter_slots)
        staged = Staged(*self._put(step, inputs.writes))
        self._sampled_rows, self._sampled_at = staged.sampled_rows, staged.sampled_at
        return staged

    def with_tokens(self, inputs: StepInputs) -> StepInputs:
        """See `RowTables`: what lies on the device stays there."""
        return inputs

    def parameters(self, inputs: StepInputs) -> SamplingTensors | None:  # [R]
        """See `RowTables`."""
        parameters = SamplingTensors.empty(len(inputs.sample_rows), self.device)
        self._lay_out_sampling(self._sampled_rows, self._sampled_at, parameters)
        return parameters

    def stage_decodes(self, inputs: StepInputs, size: int) -> None:
        """Copy a step of decodes to the places of this size, padded, and write what changed."""
        num_rows = len(inputs.rows)
        given = [inputs.rows, inputs.starts, inputs.token_ids]
        if inputs.adapter_slots is not None:
            given.append(inputs.adapter_slots)
        step = _padding(len(given), size)
        step[:, :num_rows] = given
        rows, starts, *_ = self._put(list(step), inputs.writes)
        self._sampled_rows, self._sampled_at = rows[:num_rows], starts[:num_rows]

    def stage_padding(self, size: int, *, has_adapters: bool = False) -> None:
        """Copy a step of padding rows to the places of this size."""
        self._staging.put(list(_padding(3 + has_adapters, size)))

    def lay_out_decodes(self, size: int, *, has_adapters: bool = False) -> StepTensors:
        """Return the tensors of the step staged at this size, without a host sync."""
        rows, starts, token_ids, adapter_slots = self._staging.places([size] * 4)
        step = self._static.step(size, adapter_slots if has_adapters else None)
        lay_out_step(
            self._table,
            self._latest,
            rows,
            starts,
            step.bounds,
            token_ids,
            block_size=self._block_size,
            max_count=1,
            token_ids=step.token_ids,
            positions=step.positions,
            slots=step.slots,
            block_table=step.block_table,
            context_lens=step.context_lens,
        )
        return step

    def lay_out_sampling(self, size: int) -> SamplingTensors:  # [size]
        """Return the sampling tensors of the step staged at this size, without a host sync."""
        rows, starts = self._staging.places([size] * 2)
        parameters = self.sampling_tensors(size)
        self._lay_out_sampling(rows, starts, parameters)
        return parameters

    def sampling_tensors(self, num_rows: int) -> SamplingTensors:  # [num_rows]
        """Return the tensors of the sampling parameters, which the next step overwrites."""
        return self._static.parameters.first(num_rows)

    def keep_decodes(self, size: int, tokens: Tensor) -> None:  # [size]
        """Leave what was sampled at the rows that were staged at this size."""
        keep_tokens(self._latest, self._staging.places([size])[0], tokens)

    def _put(self, step: list[Int64s], writes: RowWrites) -> list[Tensor]:
        """Copy a step's numbers, and write what changed before anybody reads it."""
        *ahead, last = writes.parts(_WRITES_ROOM)
        for part in ahead:
            write_rows(self._table, *self._staging.put(part.arrays))
        if not len(last):
            return self._staging.put(step)
        numbers = self._staging.put([*step, *last.arrays])
        write_rows(self._table, *numbers[len(step) :])
        return numbers[: len(step)]

    def keep(self, inputs: StepInputs, tokens: Tensor) -> None:
        """See `RowTables`; `inputs` are those of the step laid out last."""
        if inputs.kept_at is not None and len(tokens):
            keep_tokens(self._latest, self._sampled_rows, tokens)

    def _lay_out_sampling(self, rows: Tensor, places: Tensor, parameters: SamplingTensors) -> None:
        lay_out_draws(self._table, rows, places, column=self.num_columns, **parameters._asdict())

    def _empty_step(self, inputs: StepInputs, staged: Staged) -> StepTensors:
        bounds = staged.bounds
        num_tokens, num_sequences = len(inputs.token_ids), len(inputs.rows)
        width = -(-int(inputs.ends.max()) // self._block_size)
        is_decode = inputs.num_decodes == num_sequences

        def empty(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(sizes, dtype=dtype, device=self._latest.device)

        return StepTensors(
            num_decodes=inputs.num_decodes,
            token_ids=empty(num_tokens),
            positions=empty(num_tokens),
            slots=empty(num_tokens),
            block_table=empty(num_sequences, width, dtype=torch.int32),
            # Not read where all chunks are decodes.
            bounds=bounds if is_decode else bounds.to(torch.int32),
            context_lens=empty(num_sequences, dtype=torch.int32),
            chunks=inputs.chunks,
            adapter_slots=staged.adapter_slots,
        )


def _padding(num_arrays: int, size: int) -> Int64s:  # [num_arrays, size]
    """Make a step of padding decodes: rows, starts, tokens and, fourth, adapter slots."""
    step = np.zeros((num_arrays, size), dtype=np.int64)
    step[0] = _PADDING
    step[3:] = _NO_ADAPTER
    return step


class _StaticDecodes:
    """Tensors of a step of decodes alone, taken once: a padded step uses the first rows of them."""

    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        def zeros(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(sizes, dtype=dtype, device=device)

        self._token_ids = zeros(num_rows)
        self._positions = zeros(num_rows)
        self._slots = zeros(num_rows)
        # As wide as the longest sequence: a captured grid must not depend on who is in the batch.
        self._block_table = zeros(num_rows, num_columns, dtype=torch.int32)
        self._context_lens = zeros(num_rows, dtype=torch.int32)
        self._bounds = torch.arange(num_rows + 1, device=device)
        self.parameters = SamplingTensors.empty(num_rows, device)

    def step(self, size: int, adapter_slots: Tensor | None) -> StepTensors:
        """Return the step of so many rows."""
        return StepTensors(
            num_decodes=size,
            token_ids=self._token_ids[:size],
            positions=self._positions[:size],
            slots=self._slots[:size],
            block_table=self._block_table[:size],
            bounds=self._bounds[: size + 1],
            context_lens=self._context_lens[:size],
            chunks=(),
            adapter_slots=adapter_slots,
        )
